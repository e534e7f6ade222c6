"""The clients over a mock: retries, streams, cancellation, threads."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from corun_pd.client import (
    AsyncClient,
    Client,
    GenerationRequest,
    GenerationResult,
    MockTransport,
    RetryPolicy,
    make_result,
)
from corun_pd.errors import (
    Cancelled,
    ContractBroken,
    CorunError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
    Unimplemented,
)

QUICK = RetryPolicy(max_attempts=4, first_wait_s=0.001, max_wait_s=0.002)


def echo(request: GenerationRequest) -> GenerationResult:
    """Answers with the prompt."""
    return make_result(str(request.prompt), seed=request.seed or 0)


async def hang(request: GenerationRequest) -> GenerationResult:
    """Never answers."""
    await asyncio.sleep(3600)
    raise AssertionError


@contextmanager
def interrupted_in(calls: MockTransport) -> Iterator[None]:
    """Ctrl-C for the main thread, as soon as a call is under way."""
    main = threading.get_ident()

    def interrupt() -> None:
        while not calls.requests:
            time.sleep(0.005)
        # To this thread: the kernel may give a signal to the process to one that does not wait for the call.
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


async def test_refusals_for_now_are_tried_again() -> None:
    """Unavailable and Overloaded pass; the answer is that of the last attempt."""
    mock = MockTransport([Unavailable("no instance"), Overloaded("full", 0.001), make_result("ok")])
    async with AsyncClient(mock, retry=QUICK) as client:
        assert (await client.generate("x")).text == "ok"
    assert len(mock.requests) == 3
    assert mock.closed


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("seed", "wrong"),
        EngineFailed("died"),
        ContractBroken("differs"),
        Cancelled("gone"),
        Unimplemented("Method not found!"),
    ],
)
async def test_other_errors_are_raised_at_once(error: CorunError) -> None:
    """Trying again would not help, or would hide a fault."""
    mock = MockTransport([error, make_result("never")])
    with pytest.raises(type(error)):
        await AsyncClient(mock, retry=QUICK).generate("x")
    assert len(mock.requests) == 1


async def test_attempts_are_bounded_and_the_last_error_is_raised() -> None:
    """An outage ends in the error that says so."""
    mock = MockTransport(lambda request: Unavailable("still not"))
    with pytest.raises(Unavailable, match="still not"):
        await AsyncClient(mock, retry=QUICK).generate("x")
    assert len(mock.requests) == QUICK.max_attempts


async def test_a_wait_that_the_deadline_forbids_is_not_begun() -> None:
    """The caller learns of the refusal at once instead of sleeping into its deadline."""
    mock = MockTransport(lambda request: Overloaded("full", 60.0))
    began = time.monotonic()
    with pytest.raises(Overloaded):
        await AsyncClient(mock, timeout_s=5.0).generate("x")
    assert time.monotonic() - began < 1
    assert len(mock.requests) == 1


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
async def test_a_deadline_must_lie_ahead(timeout_s: float) -> None:
    """0 is a value, and not "no limit"."""
    with pytest.raises(InvalidRequest, match="timeout_s"):
        await AsyncClient(MockTransport(echo)).generate("x", timeout_s=timeout_s)


def test_waits_grow_and_obey_the_router() -> None:
    """Exponential up to a bound, jitter downwards; the router's own delay is never undercut."""
    policy = RetryPolicy(first_wait_s=0.1, max_wait_s=1.0)
    waits = [policy.wait_s(failures, Unavailable("x")) for failures in range(1, 100)]
    assert all(0.5 * min(1.0, 0.1 * 2**i) <= wait <= min(1.0, 0.1 * 2**i) for i, wait in enumerate(waits))
    assert all(2.0 <= policy.wait_s(1, Overloaded("x", 2.0)) <= 3.0 for _ in range(100))


async def test_a_joined_stream_equals_the_whole() -> None:
    """Every field of every sample."""
    client = AsyncClient(MockTransport(make_result("héllo", "🙂 x", seed=3)))
    stream = client.stream("x")
    with pytest.raises(RuntimeError):
        _ = stream.result
    texts = [delta.text async for delta in stream]
    assert "".join(texts) == "héllo🙂 x"
    assert len(texts) == 8
    assert stream.result == await client.generate("x")
    assert stream.start is not None
    assert stream.start.seed == 3


async def test_a_stream_is_tried_again_before_its_first_message_only() -> None:
    """A second start in one stream would be a second answer."""
    mock = MockTransport([Unavailable("x"), make_result("ab")])
    client = AsyncClient(mock, retry=QUICK)
    assert [delta.text async for delta in client.stream("x")] == ["a", "b"]

    class Breaks(MockTransport):
        async def stream(self, request, timeout_s):  # type: ignore[no-untyped-def, override]
            async for event in super().stream(request, timeout_s):
                yield event
            raise Unavailable("in the middle")

    broken = Breaks(make_result("ab"))
    with pytest.raises(Unavailable):
        _ = [delta async for delta in AsyncClient(broken, retry=QUICK).stream("x")]
    assert len(broken.requests) == 1


async def test_a_stream_that_ends_early_is_an_error() -> None:
    """Half an answer must not pass for a whole one."""

    class Truncates(MockTransport):
        async def stream(self, request, timeout_s):  # type: ignore[no-untyped-def, override]
            events = [event async for event in super().stream(request, timeout_s)]
            for event in events[:-1]:
                yield event

    with pytest.raises(EngineFailed, match="before its end"):
        _ = [delta async for delta in AsyncClient(Truncates(make_result("ab"))).stream("x")]


async def test_cancelling_and_closing_reach_the_transport() -> None:
    """A cancelled task and a closed stream both cancel their call."""
    mock = MockTransport(hang)
    task = asyncio.create_task(AsyncClient(mock).generate("x"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mock.cancelled == 1
    mock = MockTransport(make_result("abc"))
    async with AsyncClient(mock).stream("x") as stream:
        await anext(stream)
    assert mock.cancelled == 1
    assert [delta async for delta in stream] == []
    with pytest.raises(RuntimeError):
        _ = stream.result


def test_the_blocking_client_gives_what_the_async_one_gives() -> None:
    """Whole, streamed and described."""
    with Client(MockTransport(echo)) as client:
        whole = client.generate("abc", seed=5)
        with client.stream("abc", seed=5) as stream:
            assert [delta.text for delta in stream] == ["a", "b", "c"]
        assert stream.result == whole
        assert stream.start is not None
        assert client.describe().fingerprint == "mock"
        with pytest.raises(InvalidRequest):
            client.generate("\ud800")


def test_many_threads_share_a_blocking_client() -> None:
    """Each gets its own answer."""
    wrong: list[str] = []
    with Client(MockTransport(echo)) as client:

        def work(name: str) -> None:
            wrong.extend(name for i in range(20) if client.generate(f"{name}{i}").text != f"{name}{i}")

        threads = [threading.Thread(target=work, args=(f"t{i}-",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_ctrl_c_cancels_a_blocking_call() -> None:
    """The call ends at the router, and the client stays usable."""
    calls = MockTransport(hang)
    with Client(calls) as client:
        with interrupted_in(calls), pytest.raises(KeyboardInterrupt):
            client.generate("x")
        deadline = time.monotonic() + 2
        while not calls.cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        assert calls.cancelled == 1


def test_closing_a_blocking_client_ends_waiting_calls() -> None:
    """A call that waits in another thread gets Cancelled, and later ones are refused."""
    caught: list[BaseException] = []
    client = Client(MockTransport(hang))

    def wait() -> None:
        try:
            client.generate("x")
        except CorunError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    client.close()
    thread.join(timeout=5)
    assert [type(error) for error in caught] == [Cancelled]
    with pytest.raises(RuntimeError, match="closed"):
        client.generate("x")


def test_a_forgotten_blocking_client_ends_its_thread() -> None:
    """No thread outlives the last reference."""
    before = threading.active_count()
    client = Client(MockTransport(echo))
    assert threading.active_count() == before + 1
    del client
    assert threading.active_count() == before


def test_a_blocking_client_says_so_after_a_fork() -> None:
    """Its thread is not in the child: an error, where a wait would never end."""
    with Client(MockTransport(echo)) as client:
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            try:
                client.generate("x")
            except RuntimeError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
