"""Prefill and decode apart give what one engine gives, KV moves, and blocks come back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest

from corun_pd.core import MAX_MESSAGE_BYTES, Edge, KvHandoff, Role
from corun_pd.decode.tickets import Tickets
from corun_pd.errors import HandoffRejected
from corun_pd.router.legs import PrefillSession
from corun_pd.v1 import router_pb2, sampling_pb2
from corun_pd.wire.status import error_from_rpc

APART, WHOLE = router_pb2.ROUTE_DISAGGREGATED, router_pb2.ROUTE_COLOCATED


def sampling(**fields: Any) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(**{"max_tokens": 8, "seed": 7, "ignore_eos": True, **fields})


def prompt(length: int) -> sampling_pb2.TokenIds:
    return sampling_pb2.TokenIds(ids=[(7 * i + length) % 256 for i in range(length)])


def answer(response: router_pb2.GenerateResponse) -> list[Any]:
    """What must not depend on where a generation ran."""
    rows = [
        (c.text, list(c.token_ids), c.logprobs, c.finish_reason, c.stop_string, c.stop_token_id, c.seed)
        for c in response.choices
    ]
    return [rows, response.usage, response.system_fingerprint]


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


def tamper(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Handoffs arrive at the router with other fields; `handoff=None` drops them."""
    real = PrefillSession.prefill

    async def prefill(self: PrefillSession, *args: Any, **kwargs: Any) -> Any:
        (first,) = await real(self, *args, **kwargs)
        if "handoff" in fields:
            self.release(first.handoff.handoff_id)
            return [replace(first, handoff=None)]
        return [replace(first, handoff=replace(first.handoff, **fields))]

    monkeypatch.setattr(PrefillSession, "prefill", prefill)


async def test_life_of_a_sample_is_told_edge_by_edge(
    make_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In order, decode from the moment at which a decode instance has the KV cache."""
    caplog.set_level("DEBUG", logger="corun_pd.lifecycle")
    async with make_cluster() as cluster:
        for tokens in (8, 1):
            await cluster.generate(token_ids=prompt(5), sampling=sampling(max_tokens=tokens), route=APART)
    edges = [record.getMessage().split()[0].removeprefix("edge=") for record in caplog.records]
    apart = [Edge.QUEUED, Edge.PREFILL, Edge.HANDED_OFF, Edge.DECODE, Edge.FINISHED]
    assert edges == [*apart, Edge.QUEUED, Edge.PREFILL, Edge.FINISHED]


async def test_prompts_at_block_borders_equal_one_engine_and_free_their_blocks(make_cluster: Any) -> None:
    """C03: lengths around a block's size, each sent twice; blocks are back at once and not by a timeout."""
    async with make_cluster(colocated=1) as cluster:
        for length in (1, 15, 16, 17, 31, 32, 33, 512):
            for _ in range(2):
                fields = {"token_ids": prompt(length), "sampling": sampling(logprob_count=2)}
                apart = await cluster.generate(**fields, route=APART)
                assert answer(apart) == answer(await cluster.generate(**fields, route=WHOLE))
        await cluster.until_idle(within_s=2)


async def test_the_whole_prompt_is_computed_once_and_moved(make_cluster: Any) -> None:
    """C04: prefill counts every prompt token, decode none; the answer tells how many bytes moved."""
    async with make_cluster() as cluster:
        response = await cluster.generate(token_ids=prompt(500), sampling=sampling())
        prefill, decode = await cluster.loads()
        assert (prefill.prefilled_tokens, decode.prefilled_tokens) == (500, 0)
        moved = response.choices[0].placement.kv_moved_byte_count
        assert moved == decode.kv_pulled_bytes == 32 * cluster.nodes[0].info.block_bytes


async def test_streamed_and_stopped_answers_tell_what_moved_too(make_cluster: Any) -> None:
    """C04: a stop string ends the leg before it can say so itself."""
    async with make_cluster() as cluster:
        whole = await cluster.generate(text="hello", sampling=sampling(logit_bias={66: 100.0}))
        assert whole.choices[0].placement.kv_moved_byte_count > 0
        stop = whole.choices[0].text[:3]
        fields = {"text": "hello", "sampling": sampling(logit_bias={66: 100.0}, stop_strings=[stop])}
        stopped = await cluster.generate(**fields)
        assert stopped.choices[0].placement == whole.choices[0].placement
        last = (await cluster.stream(**fields))[-1].deltas[-1]
        assert last.placement == whole.choices[0].placement


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"handoff": None}, "neither an end nor a handoff"),
        ({"prompt_digest": b"x" * 32}, "made for another prompt"),
        ({"token_count": 4}, "holds 4 tokens of a prompt of 5"),
        ({"fingerprint": "f"}, "under contract f"),
        ({"lease_s": 0.5}, "of its lease are left"),
    ],
)
async def test_handoff_that_does_not_fit_fails_before_decode(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], problem: str
) -> None:
    """C04, C07: strict. Decode never sees it, nothing is computed in its stead, and the blocks are freed."""
    async with make_cluster() as cluster:
        tamper(monkeypatch, **fields)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.generate(text="hello", sampling=sampling())
        assert error.value.code() is grpc.StatusCode.ABORTED
        assert isinstance(error_from_rpc(error.value), HandoffRejected)
        assert problem in (error.value.details() or "")
        await cluster.until_idle(within_s=1)
        assert (await cluster.node(Role.DECODE).engine.load()).steps == 0


@pytest.mark.parametrize("fault", ["drop_handoffs", "corrupt_handoffs"])
async def test_kv_that_is_gone_or_wrong_is_an_error(make_cluster: Any, fault: str) -> None:
    """C04: a pull that fails is never made up for by a prefill on the decode side."""
    async with make_cluster() as cluster:
        setattr(cluster.node(Role.PREFILL).engine.faults, fault, True)
        code = await code_of(cluster.generate(text="hello", sampling=sampling()))
        assert code is grpc.StatusCode.ABORTED
        await cluster.until_idle(within_s=1)
        load = await cluster.node(Role.DECODE).engine.load()
        assert (load.prefilled_tokens, load.sampled_tokens) == (0, 0)


async def test_prompt_over_the_limit_is_refused_before_any_engine_sees_it(make_cluster: Any) -> None:
    """C06 a: in under a second, with both numbers."""
    async with make_cluster() as cluster:
        began = time.monotonic()
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"2041 prompt tokens .* 2049, more than .* 2048"
        ) as error:
            await cluster.generate(token_ids=prompt(2041), sampling=sampling())
        assert time.monotonic() - began < 1
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [load.steps for load in await cluster.loads()] == [0, 0]


async def test_prompt_and_answer_exactly_at_the_limit_are_served(make_cluster: Any) -> None:
    """C06 b: on every route."""
    async with make_cluster(colocated=1) as cluster:
        for route in (APART, WHOLE):
            response = await cluster.generate(token_ids=prompt(2040), sampling=sampling(), route=route)
            assert response.usage.completion_token_count == 8


@pytest.mark.parametrize(("counts", "role"), [({"decode": 0}, "decode"), ({"prefill": 0}, "prefill")])
async def test_empty_pool_is_unavailable_at_once(
    make_cluster: Any, counts: dict[str, int], role: str
) -> None:
    """C06 c and d: neither a hang nor 'busy'."""
    async with make_cluster(**counts) as cluster:
        with pytest.raises(grpc.aio.AioRpcError, match=f"no {role} instance has joined") as error:
            await cluster.generate(text="hello", sampling=sampling(), timeout=2)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_refusal_by_decode_releases_the_prefilled_blocks(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C06 e: an error for the client, and nothing waits for a lease to run out."""

    def refuse(_: Tickets, handoff: KvHandoff, *__: Sequence[Any]) -> None:
        raise HandoffRejected("refused by a test", handoff_id=handoff.handoff_id)

    async with make_cluster(router={"max_replays": 0}) as cluster:
        monkeypatch.setattr(Tickets, "punch", refuse)
        code = await code_of(cluster.generate(text="hello", sampling=sampling()))
        assert code is grpc.StatusCode.ABORTED
        assert (await cluster.node(Role.PREFILL).engine.load()).prefilled_tokens == 5
        await cluster.until_idle(within_s=1)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_leg_that_an_engine_fails_fails_the_generation(make_cluster: Any, role: Role) -> None:
    """C06 e: on either side; the other side is cleaned up."""
    async with make_cluster() as cluster:
        cluster.node(role).engine.faults.fail_leg = lambda _: True
        code = await code_of(cluster.generate(text="hello", sampling=sampling()))
        assert code is grpc.StatusCode.INTERNAL
        await cluster.until_idle(within_s=1)
        assert cluster.router.service.telemetry.counts[Edge.FAILED] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_death_of_an_engine_is_an_error_and_never_an_empty_answer(
    make_cluster: Any, role: Role, stream: bool
) -> None:
    """C06 f: a non-OK status at once, the member is gone, and the survivor's blocks are back."""
    async with make_cluster(prefill_s_per_token=0.05, decode_step_s=0.01) as cluster:
        send = cluster.stream if stream else cluster.generate
        call = asyncio.create_task(send(text="hello", sampling=sampling(max_tokens=1000)))
        counts = cluster.router.service.telemetry.counts
        await cluster.until(lambda: counts[Edge.PREFILL if role is Role.PREFILL else Edge.HANDED_OFF])
        dead = cluster.node(role)
        dead.engine.die()
        code = await asyncio.wait_for(code_of(call), timeout=2)
        assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
        await cluster.until(lambda: all(m.info.role is not role for m in cluster.router.fleet.members))
        cluster.nodes.remove(dead)
        await cluster.until_idle(within_s=2)
        code = await code_of(cluster.generate(text="hello", sampling=sampling(), timeout=2))
        assert code is grpc.StatusCode.UNAVAILABLE
        await asyncio.gather(dead.task, return_exceptions=True)


async def test_prompt_of_five_mebibytes_is_served(make_cluster: Any) -> None:
    """C18: far over gRPC's default of 4 MiB, on every hop."""
    size = {"max_model_tokens": 3 << 20, "block_tokens": 4096, "slots": 1}
    async with make_cluster(**size) as cluster:
        ids = sampling_pb2.TokenIds(ids=[200] * (5 << 19))  # two bytes each
        assert ids.ByteSize() > 5 << 20
        response = await cluster.generate(token_ids=ids, sampling=sampling(), timeout=60)
        assert response.usage.prompt_token_count == 5 << 19
        await cluster.until_idle()


async def test_nul_in_a_prompt_is_a_character(make_cluster: Any) -> None:
    """C18: it ends nothing."""
    async with make_cluster() as cluster:
        response = await cluster.generate(text="a\0b", sampling=sampling())
        assert response.usage.prompt_token_count == 3


async def test_message_over_the_limit_fails_alone(make_cluster: Any) -> None:
    """C18: gRPC's own status, with the limit in it; the channel and other calls live on."""
    async with make_cluster(decode_step_s=0.005) as cluster:
        channel = grpc.aio.insecure_channel(cluster.address, options=[("grpc.max_send_message_length", -1)])
        async with channel:
            send = channel.unary_unary("/corun_pd.v1.RouterService/Generate")
            small = router_pb2.GenerateRequest(
                generation={"text": "hello", "sampling": sampling(max_tokens=64)}
            )
            other = send(small.SerializeToString())
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await send(b"x" * (MAX_MESSAGE_BYTES + 1))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(MAX_MESSAGE_BYTES) in (error.value.details() or "")
            assert router_pb2.GenerateResponse.FromString(await other).usage.completion_token_count == 64
            again = router_pb2.GenerateResponse.FromString(await send(small.SerializeToString()))
            assert again.usage.completion_token_count == 64
