"""Who is in the fleet, and what coming and going does to generations."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from corun_pd.config import EngineConfig, RouterConfig
from corun_pd.core import Role
from corun_pd.errors import ContractMismatch
from corun_pd.router.server import running_router
from corun_pd.router.text import TextModel
from corun_pd.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from corun_pd.wire.convert import instance_to_pb
from corun_pd.wire.server import open_channel
from corun_pd.wire.status import error_from_rpc


def sampling(**fields: Any) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(**{"max_tokens": 8, "seed": 7, "ignore_eos": True, **fields})


async def test_instance_of_another_contract_is_refused_with_the_difference(make_cluster: Any) -> None:
    """When it joins, and not at the first request."""
    async with make_cluster() as cluster:
        other = EngineConfig(kind="fake", slots=8, max_model_tokens=2048, block_tokens=16)
        with pytest.raises(ContractMismatch, match="slots: 4 != 8"):
            await cluster.launch(Role.DECODE, other)
        fleet = await cluster.stub.DescribeFleet(router_pb2.DescribeFleetRequest())
        assert [member.instance.role for member in fleet.members] == [1, 2]
        assert (await cluster.generate(text="hi", sampling=sampling())).system_fingerprint


async def test_instance_that_cannot_be_dialled_does_not_join(make_cluster: Any, monkeypatch: Any) -> None:
    """The router calls back before it lets anyone in."""
    monkeypatch.setattr("corun_pd.router.fleet._DIAL_TIMEOUT_S", 0.2)
    async with make_cluster() as cluster:
        instance = instance_to_pb(cluster.nodes[0].info)
        instance.instance_id, instance.address = "lost", "127.0.0.1:1"
        stub = router_pb2_grpc.FleetServiceStub(cluster.channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.JoinFleet(router_pb2.JoinFleetRequest(instance=instance)).read()
        assert "lost cannot be reached at 127.0.0.1:1" in error_from_rpc(error.value).message
        assert len(cluster.router.fleet.members) == 2


async def test_waiting_generation_is_served_by_a_newcomer(make_cluster: Any) -> None:
    """It need not wait for the end of another."""
    async with make_cluster(slots=1, decode_step_s=0.02, router={"decode_lookahead": 0}) as cluster:
        long = asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=400), timeout=30))
        await cluster.until(lambda: cluster.node(Role.DECODE).engine._running)
        waiting = asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=2)))
        await cluster.until(lambda: cluster.router.service._admission.waiting == 1)
        newcomer = await cluster.launch(Role.DECODE)
        placement = (await waiting).choices[0].placement
        assert placement.decode_instance_id == newcomer.info.instance_id
        assert not long.done()
        long.cancel()
        await cluster.until_idle()


async def test_member_that_leaves_finishes_what_it_has(make_cluster: Any) -> None:
    """Leaving is not dying: its legs run to their end, and it gets no new ones."""
    async with make_cluster(decode_step_s=0.005) as cluster:
        running = asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=60)))
        await cluster.until(lambda: cluster.node(Role.DECODE).engine._running)
        member = next(m for m in cluster.router.fleet.members if m.info.role is Role.DECODE)
        cluster.router.fleet.leave(member)
        assert len((await running).choices[0].token_ids) == 60
        await asyncio.wait_for(asyncio.gather(*cluster.router.fleet._retirements), 2)
        # The call has ended, so the instance's membership has too; it joins again by itself.
        await cluster.until(lambda: len(cluster.router.fleet.members) == 2)
        assert len((await cluster.generate(text="hi", sampling=sampling())).choices[0].token_ids) == 8


async def test_full_queue_tells_when_to_come_back(make_cluster: Any) -> None:
    """RESOURCE_EXHAUSTED with a delay; those in the queue are not disturbed."""
    async with make_cluster(
        slots=1, decode_step_s=0.005, router={"decode_lookahead": 0, "max_waiting": 1}
    ) as cluster:
        calls = []
        for waiting in (0, 1):
            calls.append(asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=40))))
            await cluster.until(lambda: cluster.router.service._admission.waiting == waiting)  # noqa: B023
            await cluster.until(lambda: cluster.node(Role.DECODE).engine._running)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.generate(text="hi", sampling=sampling())
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_from_rpc(error.value).metadata["retry_delay_s"]
        for call in calls:
            assert len((await call).choices[0].token_ids) == 40


async def test_legs_spread_over_instances(make_cluster: Any) -> None:
    """Every instance of a role gets its share of a crowd."""
    async with make_cluster(prefill=2, decode=2, decode_step_s=0.002, prefill_s_per_token=0.001) as cluster:
        answers = await asyncio.gather(*(cluster.generate(text="hi", sampling=sampling()) for _ in range(32)))
        places = [answer.choices[0].placement for answer in answers]
        for name in ("prefill_instance_id", "decode_instance_id"):
            counts = [
                sum(getattr(place, name) == n.info.instance_id for place in places) for n in cluster.nodes
            ]
            assert sorted(counts)[:2] == [0, 0]
            assert min(sorted(counts)[2:]) >= 8
        await cluster.until_idle()


async def test_prefill_with_a_small_pool_never_stalls(make_cluster: Any) -> None:
    """Finished prompts pin blocks until they are pulled; the router sends no more than fit."""
    pool = {"kv_cache_bytes": 16 * 1024 * 12, "slots": 2, "max_model_tokens": 128}
    async with make_cluster(decode=2, transfer_s=0.002, **pool) as cluster:
        answers = await asyncio.gather(
            *(cluster.generate(text="x" * 90, sampling=sampling(seed=i)) for i in range(60))
        )
        assert all(len(answer.choices[0].token_ids) == 8 for answer in answers)
        await cluster.until_idle()


async def test_standard_instances_form_a_fleet_of_their_own(make_cluster: Any) -> None:
    """They serve whole generations, under another contract."""
    async with make_cluster(prefill=0, decode=0, standard=1) as cluster:
        response = await cluster.generate(text="hi", sampling=sampling())
        assert len(response.choices[0].token_ids) == 8
        with pytest.raises(ContractMismatch):
            await cluster.launch(Role.PREFILL)


async def test_fleet_is_described_with_load_and_reservations(make_cluster: Any) -> None:
    """Contract, members, what each does, and the limit on messages."""
    async with make_cluster(decode_step_s=0.02) as cluster:
        call = asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=400), timeout=30))
        await cluster.until(lambda: cluster.node(Role.DECODE).engine._running)
        fleet = await cluster.stub.DescribeFleet(router_pb2.DescribeFleetRequest())
        prefill, decode = fleet.members
        assert fleet.contract.fingerprint == decode.instance.contract.fingerprint
        assert (fleet.running_count, fleet.waiting_count) == (1, 0)
        assert fleet.max_message_byte_count == 64 << 20
        assert (decode.load.running_count, decode.leg_count, decode.reserved_block_count) == (1, 1, 26)
        await cluster.until(lambda: cluster.router.fleet.members[0].blocks == 0)  # pulled long before its end
        assert (prefill.load.running_count, prefill.leg_count) == (0, 0)
        call.cancel()
        await cluster.until_idle()


async def test_stopping_router_serves_what_runs_and_refuses_the_rest(
    make_cluster: Any, model_folder: Any
) -> None:
    """Health says NOT_SERVING first, then running generations end, then the port closes."""
    async with make_cluster(decode_step_s=0.005) as cluster:
        running = asyncio.create_task(cluster.generate(text="hi", sampling=sampling(max_tokens=60)))
        await cluster.until(lambda: cluster.node(Role.DECODE).engine._running)
        stopping = asyncio.create_task(cluster.router.stop(5.0))
        health = health_pb2_grpc.HealthStub(cluster.channel)
        await asyncio.sleep(0.02)
        status = (await health.Check(health_pb2.HealthCheckRequest())).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
            await cluster.generate(text="hi", sampling=sampling())
        assert len((await running).choices[0].token_ids) == 60
        await asyncio.wait_for(stopping, 3)


async def test_router_without_instances_is_unavailable_at_once(model_folder: Any) -> None:
    """It serves, and says what is missing."""
    async with (
        running_router(TextModel.load(model_folder), RouterConfig(port=0)) as router,
        open_channel(router.address) as channel,
    ):
        stub = router_pb2_grpc.RouterServiceStub(channel)
        generation = router_pb2.Generation(text="hi")
        with pytest.raises(grpc.aio.AioRpcError, match="no instance has joined") as error:
            await stub.Generate(router_pb2.GenerateRequest(generation=generation), timeout=2)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_burst_of_calls_is_taken_to_the_last(model_folder: Any) -> None:
    """gRPC's own bound would cancel some of a burst at random; the router answers every one."""
    async with (
        running_router(TextModel.load(model_folder), RouterConfig(port=0)) as router,
        open_channel(router.address) as channel,
    ):
        stub = router_pb2_grpc.RouterServiceStub(channel)
        requests = [router_pb2.GenerateRequest(generation=router_pb2.Generation(text="hi"))] * 1800
        results = await asyncio.gather(*map(stub.Generate, requests), return_exceptions=True)
        codes = {result.code() for result in results if isinstance(result, grpc.aio.AioRpcError)}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        assert len(results) == 1800
