"""The client on a real connection: sizes, errors, cancellation, a router that comes late (C18, C21)."""

import asyncio
import time

import pytest

from corun_pd.client import AsyncClient, Client, Delta, FinishReason, Placement, RetryPolicy, TokenLogprobs
from corun_pd.core import MAX_MESSAGE_BYTES
from corun_pd.errors import (
    CorunError,
    DeadlineExceeded,
    EngineFailed,
    HandoffRejected,
    InvalidRequest,
    Overloaded,
    Unavailable,
    Unimplemented,
    UnsupportedParameter,
)
from corun_pd.wire.server import build_server
from tests.integration.client.fake_router import CONTRACT, serve_router

ONE_TRY = RetryPolicy(max_attempts=1)


async def test_an_answer_crosses_whole() -> None:
    """Every field of the wire's answer is in the client's."""
    async with serve_router() as router, AsyncClient(router.address) as client:
        result = await client.generate("héy", seed=0, n=2, logprobs=1, generation_id="mine")
        assert (result.generation_id, result.seed, result.text) == ("mine", 0, "héy")
        assert result.system_fingerprint == CONTRACT.fingerprint
        assert [choice.seed for choice in result.choices] == [0, 1]
        choice = result.choices[1]
        assert (choice.token_ids, choice.stop_reason) == ((3, 3, 3), "!")
        assert choice.finish_reason is FinishReason.STOP
        assert choice.logprobs == (TokenLogprobs(-0.5, 1, ((3, -0.5), (4, float("-inf")))),) * 3
        assert choice.placement == Placement("p", "", 10)
        assert (result.usage.prompt_tokens, result.usage.total_tokens) == (2, 8)
        assert result != await client.generate("héy", seed=1, n=2, logprobs=1)


async def test_a_stream_joins_to_the_unary_answer() -> None:
    """Deltas come one by one and add up."""
    async with serve_router() as router, AsyncClient(router.address) as client:
        stream = client.stream("héy", seed=4)
        deltas: list[Delta] = [delta async for delta in stream]
        assert [delta.text for delta in deltas] == ["h", "é", "y"]
        assert stream.result == await client.generate("héy", seed=4)


async def test_the_fleet_is_described_in_the_projects_own_types() -> None:
    """No wire type leaks."""
    async with serve_router() as router, AsyncClient(router.address) as client:
        fleet = await client.describe()
    assert fleet.fingerprint == CONTRACT.fingerprint
    assert fleet.settings == CONTRACT.as_json
    assert [member.instance.model for member in fleet.members] == ["models/tiny"]
    assert fleet.members[0].load is None
    assert fleet.max_message_bytes == MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("sampling.top_p", "must be in (0, 1], got 2"),
        UnsupportedParameter("sampling.n", "cannot be served"),
        Overloaded("full", 0.25),
        Unavailable("no decode instance"),
        HandoffRejected("used before"),
        EngineFailed("died"),
    ],
)
async def test_errors_arrive_in_the_class_that_was_raised(error: CorunError) -> None:
    """With the field or the delay that they carry, by unary call and by stream."""
    async with serve_router() as router, AsyncClient(router.address, retry=ONE_TRY) as client:
        router.errors["x"] = error
        with pytest.raises(type(error)) as caught:
            await client.generate("x")
        with pytest.raises(type(error)) as streamed:
            await anext(client.stream("x"))
    for found in (caught.value, streamed.value):
        assert type(found) is type(error)
        assert dict(found.metadata) == dict(error.metadata)
        assert found.__cause__ is not None


async def test_a_long_prompt_and_every_character_cross() -> None:
    """5 MiB of text, over gRPC's default of 4; NUL and emoji; a lone surrogate never leaves."""
    long = "é" * (5 << 19)
    async with serve_router() as router, AsyncClient(router.address) as client:
        await client.generate(long)
        assert router.requests[-1].text == long
        assert (await client.generate("a\0b🙂")).text == "a\0b🙂"
        with pytest.raises(InvalidRequest, match="U\\+D83D"):
            await client.generate("a\ud83d")
        assert len(router.requests) == 2


async def test_a_message_over_the_limit_is_an_error_that_names_it_and_others_go_on() -> None:
    """The channel and the calls beside it live on."""
    async with serve_router() as router, AsyncClient(router.address) as client:
        beside = asyncio.create_task(client.generate("slow"))
        with pytest.raises(InvalidRequest, match=str(MAX_MESSAGE_BYTES)):
            await client.generate("x" * (MAX_MESSAGE_BYTES + 1))
        assert (await beside).text == "slow"
        assert (await client.generate("after")).text == "after"


async def test_cancelling_ends_the_call_at_the_router_within_a_second() -> None:
    """By task, by closing a stream, by dropping it, by deadline."""
    async with serve_router() as router, AsyncClient(router.address) as client:
        task = asyncio.create_task(client.generate("hang"))
        await router.until(lambda: router.running == 1)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await router.until(lambda: router.cancelled == 1)

        async with client.stream("hang") as stream:
            assert (await anext(stream)).text == "h"
        await router.until(lambda: router.cancelled == 2)

        async for _ in client.stream("hang"):
            break
        await router.until(lambda: router.cancelled == 3)
        assert time.monotonic() - began < 1

        with pytest.raises(DeadlineExceeded):
            await client.generate("hang", timeout_s=0.1)
        await router.until(lambda: router.cancelled == 4)
        with pytest.raises(DeadlineExceeded):
            _ = [delta async for delta in client.stream("hang", timeout_s=0.1)]
        await router.until(lambda: router.cancelled == 5)
        assert router.running == 0


async def test_a_router_that_comes_late_is_waited_for() -> None:
    """Unavailable is tried again within the deadline, on the same channel."""
    async with serve_router() as first:
        port = int(first.address.rpartition(":")[2])
    async with AsyncClient(f"127.0.0.1:{port}", timeout_s=10) as client:
        task = asyncio.create_task(client.generate("x"))
        await asyncio.sleep(0.15)
        async with serve_router(port):
            assert (await task).text == "x"


async def test_no_router_is_unavailable_and_not_a_wait() -> None:
    """Nothing listens there."""
    async with serve_router() as router:
        address = router.address
    async with AsyncClient(address, retry=ONE_TRY) as client:
        with pytest.raises(Unavailable):
            await client.generate("x", timeout_s=5)
        with pytest.raises(Unavailable):
            await client.describe(timeout_s=5)


async def test_another_server_than_a_router_is_named_at_once() -> None:
    """An instance's address, say: it lacks the call, and will lack it next time too."""
    server, _ = build_server("127.0.0.1", 0, [])
    await server.start()
    try:
        async with AsyncClient(server.address) as client:
            began = time.monotonic()
            for call in (client.describe(), client.generate("x"), anext(client.stream("x"))):
                with pytest.raises(Unimplemented, match="UNIMPLEMENTED"):
                    await call
            assert time.monotonic() - began < 1
    finally:
        await server.stop(0)


async def test_the_blocking_client_works_beside_a_running_loop() -> None:
    """From a thread, as a program with its own loop would use it."""

    def work(address: str) -> list[str]:
        with Client(address) as client, client.stream("abc", seed=1) as stream:
            texts = [delta.text for delta in stream]
            assert stream.result == client.generate("abc", seed=1)
            return texts

    async with serve_router() as router:
        assert await asyncio.to_thread(work, router.address) == ["a", "b", "c"]
