"""C21: a generation that nobody waits for stops at once, wherever it is, and leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from corun_pd.core import Edge, Role
from corun_pd.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from corun_pd.wire.server import open_channel

SLOW_PREFILL = {"prefill_s_per_token": 0.2}
SLOW_PULL = {"transfer_s": 5.0}
SLOW_DECODE = {"decode_step_s": 0.02}
ONE_ROW = {"slots": 1, "router": {"decode_lookahead": 0}, **SLOW_DECODE}

#: Where a sample is when it is cancelled: what makes it stay there, and how to know that it is there.
POINTS: dict[str, dict[str, Any]] = {
    "queued": ONE_ROW,
    "in prefill": SLOW_PREFILL,
    "handed off": SLOW_DECODE,
    "pulling": SLOW_PULL,
    "waiting for a row": {**ONE_ROW, "router": {"decode_lookahead": 1}},
    "in decode": SLOW_DECODE,
    "last token": SLOW_DECODE,
}


def generation(max_tokens: int = 1000, **fields: Any) -> router_pb2.Generation:
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, seed=7, ignore_eos=True)
    return router_pb2.Generation(text="hello", sampling=sampling, **fields)


async def drain(call: Any) -> None:
    """Reads a call, whole or streamed, to its end."""
    if hasattr(call, "read"):
        while (await call.read()) is not grpc.aio.EOF:
            pass
    else:
        await call


@asynccontextmanager
async def company(cluster: Any, point: str) -> AsyncIterator[None]:
    """A generation that holds the only row, for the points that wait for it."""
    if "slots" not in POINTS[point]:
        yield
        return
    call = cluster.stub.Generate(router_pb2.GenerateRequest(generation=generation()))
    engine = cluster.node(Role.DECODE).engine
    await cluster.until(lambda: engine._running == 1)
    yield
    assert not call.done()  # others are none of a cancellation's business
    call.cancel()


async def reach(cluster: Any, point: str, call: Any) -> None:
    """Waits until the sample is there."""
    counts = cluster.router.service.telemetry.counts
    prefill, decode = (cluster.node(role).engine for role in (Role.PREFILL, Role.DECODE))
    if point == "queued":
        await cluster.until(lambda: cluster.router.service._admission.waiting == 1)
    elif point == "in prefill":
        await cluster.until(lambda: prefill._legs)
    elif point == "handed off":
        await cluster.until(lambda: counts[Edge.HANDED_OFF])
    elif point == "pulling":
        await cluster.until(lambda: decode._legs)
        assert len(prefill._handoffs) == 1
    elif point == "waiting for a row":
        await cluster.until(lambda: decode._handed_over)
    elif point == "in decode":
        await cluster.until(lambda: decode._running)
    else:
        await cluster.until(lambda: decode._steps >= 4)


def request(cluster: Any, point: str, stream: bool, **call: Any) -> Any:
    max_tokens = 6 if point == "last token" else 1000
    if stream:
        return cluster.stub.StreamGenerate(
            router_pb2.StreamGenerateRequest(generation=generation(max_tokens)), **call
        )
    return cluster.stub.Generate(router_pb2.GenerateRequest(generation=generation(max_tokens)), **call)


async def assert_clean(cluster: Any) -> None:
    """Counted as cancelled and not as failed; every block is back, and the cluster serves."""
    counts = cluster.router.service.telemetry.counts
    await cluster.until_idle(within_s=2)
    assert counts[Edge.CANCELLED] >= 1
    assert counts[Edge.FAILED] == 0
    assert cluster.router.service.running == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("point", POINTS)
async def test_cancelled_call_frees_both_sides(make_cluster: Any, point: str, stream: bool) -> None:
    """By the client's cancel, at each point of a sample's life."""
    async with make_cluster(**POINTS[point]) as cluster:
        async with company(cluster, point):
            call = request(cluster, point, stream)
            reading = asyncio.create_task(drain(call))
            await reach(cluster, point, call)
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await assert_clean(cluster)
        await asyncio.sleep(0.03)  # the step that ran in that moment
        steps = [load.steps for load in await cluster.loads()]
        await asyncio.sleep(0.05)
        assert [load.steps for load in await cluster.loads()] == steps  # no engine works on


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("point", ["queued", "in prefill", "pulling", "in decode"])
async def test_deadline_frees_both_sides(make_cluster: Any, point: str, stream: bool) -> None:
    """The caller gets DEADLINE_EXCEEDED, and what it asked for stops."""
    async with make_cluster(**POINTS[point]) as cluster:
        async with company(cluster, point):
            call = request(cluster, point, stream, timeout=0.3)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await drain(call)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await assert_clean(cluster)


@pytest.mark.parametrize("point", ["queued", "in decode"])
async def test_client_that_is_gone_frees_both_sides(make_cluster: Any, point: str) -> None:
    """Its connection ends without a word."""
    async with make_cluster(**POINTS[point]) as cluster:
        async with company(cluster, point):
            channel = open_channel(cluster.address)
            stub = router_pb2_grpc.RouterServiceStub(channel)
            call = stub.StreamGenerate(router_pb2.StreamGenerateRequest(generation=generation()))
            reading = asyncio.create_task(drain(call))
            await reach(cluster, point, call)
            await channel.close()
            await asyncio.gather(reading, return_exceptions=True)
        await assert_clean(cluster)


async def test_cancelled_generation_cancels_every_sample(make_cluster: Any) -> None:
    """Those that run and those that wait."""
    async with make_cluster(slots=2, **SLOW_DECODE) as cluster:
        many = router_pb2.GenerateRequest(generation=generation(sample_count=8))
        call = cluster.stub.Generate(many)
        await cluster.until(lambda: cluster.node(Role.DECODE).engine._running == 2)
        call.cancel()
        await assert_clean(cluster)
        assert cluster.router.service.telemetry.counts[Edge.CANCELLED] == 8


async def test_failed_sample_cancels_its_siblings(make_cluster: Any) -> None:
    """The generation fails once, with the first error."""
    async with make_cluster(**SLOW_DECODE) as cluster:
        engine = cluster.node(Role.DECODE).engine
        engine.faults.fail_leg = lambda work: work.sampling.seed == 9
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.stub.Generate(router_pb2.GenerateRequest(generation=generation(sample_count=4)))
        assert error.value.code() is grpc.StatusCode.INTERNAL
        await cluster.until_idle(within_s=2)
        counts = cluster.router.service.telemetry.counts
        assert (counts[Edge.FAILED], counts[Edge.CANCELLED]) == (1, 3)


async def test_crowd_of_cancellations_leaves_nothing(make_cluster: Any) -> None:
    """At whatever point each of them is, and those that are not cancelled are served in full."""
    async with make_cluster(decode=2, prefill_s_per_token=0.0005, decode_step_s=0.002) as cluster:

        async def one(index: int) -> int:
            response = cluster.generate(
                text=f"{index}",
                sampling=sampling_pb2.SamplingParams(max_tokens=20, seed=index, ignore_eos=True),
            )
            if index % 3:
                async with asyncio.timeout(0.003 * (index % 20)):
                    return len((await response).choices[0].token_ids)
            return len((await response).choices[0].token_ids)

        results = await asyncio.gather(*(one(i) for i in range(120)), return_exceptions=True)
        assert all(results[i] == 20 for i in range(0, 120, 3))
        assert any(isinstance(result, TimeoutError) for result in results)
        await cluster.until_idle(within_s=3)
