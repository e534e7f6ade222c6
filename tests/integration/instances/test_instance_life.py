"""An instance's life: start, membership, death, drain."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from corun_pd.cluster import membership
from corun_pd.cluster.instance import serve_instance
from corun_pd.cluster.preflight import free_port
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.fake import FakeEngine
from corun_pd.errors import ContractMismatch, EngineFailed, SetupError, Unimplemented
from corun_pd.v1 import instance_pb2, instance_pb2_grpc, legs_pb2, legs_pb2_grpc
from corun_pd.wire.server import build_server, open_channel
from corun_pd.wire.status import error_from_rpc

CONFIG = EngineConfig(kind="fake", max_model_tokens=512)


async def health_of(address: str) -> int:
    async with open_channel(address) as channel:
        check = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=""), wait_for_ready=True, timeout=5
        )
    return int(check.status)


async def test_an_instance_is_bound_and_not_serving_until_its_engine_runs(tmp_path: Path) -> None:
    """A supervisor can see it load; a router is never sent there."""
    engine = FakeEngine(tmp_path, Role.COLOCATED, CONFIG, "127.0.0.1")
    engine.faults.never_ready = True
    port = free_port("127.0.0.1")
    task = asyncio.create_task(serve_instance(Role.COLOCATED, tmp_path, CONFIG, port=port, engine=engine))
    assert await health_of(f"127.0.0.1:{port}") == health_pb2.HealthCheckResponse.NOT_SERVING
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await instance_pb2_grpc.InstanceServiceStub(channel).DescribeInstance(
                instance_pb2.DescribeInstanceRequest()
            )
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_busy_port_is_a_setup_error_that_names_it(launch: Any, tmp_path: Path) -> None:
    """And no engine is left behind."""
    port = int((await launch(Role.COLOCATED)).info.address.rpartition(":")[2])
    with pytest.raises(SetupError, match=str(port)):
        await serve_instance(Role.COLOCATED, tmp_path, CONFIG, port=port)


async def test_an_instance_describes_itself(launch: Any) -> None:
    """Contract, capacity and load, as the router will plan with them."""
    instance = await launch(Role.DECODE, slots=3)
    stub = instance_pb2_grpc.InstanceServiceStub(instance.channel)
    answer = (await stub.DescribeInstance(instance_pb2.DescribeInstanceRequest())).instance
    assert (answer.slot_count, answer.block_count) == (3, instance.info.blocks)
    assert answer.contract.fingerprint == instance.info.fingerprint
    assert answer.contract.settings["slots"] == "3"
    assert await health_of(instance.info.address) == health_pb2.HealthCheckResponse.SERVING


async def test_membership_comes_back_with_the_router(
    launch: Any, monkeypatch: pytest.MonkeyPatch, start_fleet: Any
) -> None:
    """A router that is away, or restarts, costs no instance: it joins when it can, and again."""
    monkeypatch.setattr(membership, "FIRST_DELAY_S", 0.02)
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    instance = await launch(Role.COLOCATED, router=address)
    for _ in range(2):
        fleet = await start_fleet(port=int(address.rpartition(":")[2]))
        assert await asyncio.wait_for(fleet.joined.get(), 10) == instance.info.instance_id
        await fleet.server.stop(0)


async def test_another_contract_ends_the_instance_with_the_difference(
    tmp_path: Path, start_fleet: Any
) -> None:
    """Refused at the join, by field; it does not go on trying."""
    fleet = await start_fleet(ContractMismatch("other contract", {"slots": ("4", "8")}))
    with pytest.raises(ContractMismatch, match="slots: 4 != 8"):
        await asyncio.wait_for(serve_instance(Role.COLOCATED, tmp_path, CONFIG, router=fleet.address), 10)


async def test_another_server_than_a_router_ends_the_instance(tmp_path: Path) -> None:
    """What is there will not become a router."""
    server, _ = build_server("127.0.0.1", 0, [])
    await server.start()
    try:
        with pytest.raises(Unimplemented):
            await asyncio.wait_for(
                serve_instance(Role.COLOCATED, tmp_path, CONFIG, router=server.address), 10
            )
    finally:
        await server.stop(0)


async def test_the_death_of_the_engine_ends_legs_calls_membership_and_process(
    launch: Any, leg: Any, start_fleet: Any
) -> None:
    """Legs fail with ENGINE_FAILED, then the call ends so, then the instance raises."""
    fleet = await start_fleet()
    instance = await launch(Role.COLOCATED, router=fleet.address, decode_step_s=0.01)
    await asyncio.wait_for(fleet.joined.get(), 10)
    call = instance.generations()
    await call.send(leg(1, stream=True, max_tokens=1000))
    await call.first_token(1)
    instance.engine.faults.die_after_steps = 1
    assert (await call.finish(1)).error.reason == "ENGINE_FAILED"
    with pytest.raises(grpc.aio.AioRpcError) as failure:  # noqa: PT012 - what is left is read first
        while await call.read():
            pass
    assert isinstance(error_from_rpc(failure.value), EngineFailed)
    with pytest.raises(EngineFailed, match="died after"):
        await asyncio.wait_for(instance.task, 10)
    assert await asyncio.wait_for(fleet.left.get(), 10) == instance.info.instance_id


async def test_a_drained_instance_leaves_finishes_and_then_goes(
    tmp_path: Path, leg: Any, start_fleet: Any
) -> None:
    """Legs under way get all their tokens; a new one is turned away."""
    fleet = await start_fleet()
    config = CONFIG.model_copy(update={"fake": CONFIG.fake.model_copy(update={"decode_step_s": 0.01})})
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_instance(Role.COLOCATED, tmp_path, config, router=fleet.address, on_ready=ready.set_result)
    )
    info = await ready
    await asyncio.wait_for(fleet.joined.get(), 10)
    async with open_channel(info.address) as channel:
        call = legs_pb2_grpc.ColocatedServiceStub(channel).RunGenerations()
        await call.write(legs_pb2.RunGenerationsRequest(starts=[leg(1, max_tokens=40)]))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait_for(fleet.left.get(), 10)
        assert await health_of(info.address) == health_pb2.HealthCheckResponse.NOT_SERVING
        await call.write(legs_pb2.RunGenerationsRequest(starts=[leg(2)]))
        finishes = {f.leg_id: f for f in [*(await call.read()).finishes, *(await call.read()).finishes]}
        assert finishes[2].error.reason == "UNAVAILABLE"
        assert len(finishes[1].token_ids) == 40
        assert await call.read() is grpc.aio.EOF
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("pulled", [True, False])
async def test_a_drained_prefill_instance_waits_for_its_handoffs(
    launch: Any, leg: Any, prefill_start: Any, decode_start: Any, pulled: bool
) -> None:
    """A pull ends the wait, and so does the drain's time limit: nobody is left hanging either way."""
    prefill = await launch(Role.PREFILL, drain_timeout_s=10 if pulled else 0.3)
    decode = await launch(Role.DECODE)
    first, second = prefill.prefills(), decode.decodes()
    await first.send(prefill_start(leg(1)))
    start = decode_start(leg(1), await first.finish(1))
    prefill.task.cancel()
    done, _ = await asyncio.wait([prefill.task], timeout=0.2)
    assert not done
    if pulled:
        await second.send(start)
        assert len((await second.finish(1)).token_ids) == 7
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(prefill.task, 5)
    if not pulled:
        await second.send(start)
        assert "does not answer" in (await second.finish(1)).error.message
