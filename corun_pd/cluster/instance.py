"""One instance: an engine, its service, and its membership of a fleet.

bound, NOT_SERVING ─► engine starts ─► SERVING ─► joins the router, and stays joined
                                          │
   cancelled: leaves the fleet, NOT_SERVING ─► legs and handoffs drain ─► engine closes
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc

from corun_pd.cluster.membership import stay_joined
from corun_pd.config import EngineConfig
from corun_pd.core import InstanceInfo, Role
from corun_pd.decode.colocated import ColocatedService
from corun_pd.decode.service import DecodeService
from corun_pd.engine.base import Engine
from corun_pd.engine.factory import build_engine
from corun_pd.engine.legs import LegHost
from corun_pd.errors import CorunError, Unavailable
from corun_pd.prefill.service import PrefillService
from corun_pd.v1 import instance_pb2, instance_pb2_grpc, legs_pb2_grpc
from corun_pd.wire.convert import instance_to_pb, load_to_pb
from corun_pd.wire.server import Server, Service, build_server
from corun_pd.wire.status import abort

__all__ = ["InstanceService", "role_service", "serve_instance"]

Context = grpc.aio.ServicerContext[
    instance_pb2.DescribeInstanceRequest, instance_pb2.DescribeInstanceResponse
]

#: How often a draining instance looks whether it is idle.
DRAIN_POLL_S: Final = 0.02

#: How long calls get to end by themselves when the engine has.
LAST_WORDS_S: Final = 1.0


class InstanceService(instance_pb2_grpc.InstanceServiceServicer):
    """The servicer. `info` is None until the engine runs."""

    def __init__(self, engine: Engine) -> None:
        self.info: InstanceInfo | None = None
        self._engine = engine

    async def DescribeInstance(  # noqa: N802 - the wire's name
        self, request: instance_pb2.DescribeInstanceRequest, context: Context
    ) -> instance_pb2.DescribeInstanceResponse:
        """What the instance is and does; UNAVAILABLE while the engine starts."""
        if self.info is None:
            await abort(context, Unavailable("the engine is starting"))
        try:
            load = await self._engine.load()
        except CorunError as error:
            await abort(context, error)
        return instance_pb2.DescribeInstanceResponse(
            instance=instance_to_pb(self.info), load=load_to_pb(load)
        )


def role_service(role: Role, legs: LegHost) -> Service[Any]:
    """The leg service of a role."""
    if role is Role.PREFILL:
        add = legs_pb2_grpc.add_PrefillServiceServicer_to_server
        return Service("corun_pd.v1.PrefillService", PrefillService(legs), add)
    if role is Role.DECODE:
        add = legs_pb2_grpc.add_DecodeServiceServicer_to_server
        return Service("corun_pd.v1.DecodeService", DecodeService(legs), add)
    add = legs_pb2_grpc.add_ColocatedServiceServicer_to_server
    return Service("corun_pd.v1.ColocatedService", ColocatedService(legs), add)


async def serve_instance(
    role: Role,
    model: Path,
    config: EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    router: str | None = None,
    drain_timeout_s: float = 10.0,
    on_ready: Callable[[InstanceInfo], None] | None = None,
    engine: Engine | None = None,
) -> None:
    """Serves one instance until it is cancelled; then drains it, closes it and lets the cancellation go on.

    `host` is where the router and other instances reach it. `router` None joins no fleet. `on_ready` is
    called once, when health says SERVING. `engine` overrides the one that `config` names. A second
    cancellation ends the draining at once.

    Raises SetupError when it cannot start, ContractMismatch when the fleet runs another contract, and
    EngineFailed when the engine dies; every leg has failed by then.
    """
    legs = LegHost(engine or build_engine(model, role, config, host))
    instance = InstanceService(legs.engine)
    add = instance_pb2_grpc.add_InstanceServiceServicer_to_server
    services = [Service("corun_pd.v1.InstanceService", instance, add), role_service(role, legs)]
    server, _ = build_server(host, port, services)
    await server.start()
    try:
        await legs.start()
        info = instance.info = describe(role, server.address, legs)
        await server.set_serving()
        if on_ready is not None:
            on_ready(info)
        await _serve(legs, info, server, router, drain_timeout_s)
    finally:
        await server.stop(LAST_WORDS_S)
        await legs.engine.close()


def describe(role: Role, address: str, legs: LegHost) -> InstanceInfo:
    """The instance around a started engine, under a new name."""
    info = legs.info
    return InstanceInfo(
        instance_id=f"{role}-{uuid.uuid4().hex[:8]}",
        role=role,
        address=address,
        fingerprint=info.contract.fingerprint,
        settings=info.contract.as_json,
        model=info.model,
        slots=info.slots,
        blocks=info.blocks,
        block_tokens=info.block_tokens,
        max_model_tokens=info.max_model_tokens,
        prefill_tokens=info.prefill_tokens,
        block_bytes=info.block_bytes,
        max_logprobs=info.max_logprobs,
        vocabulary=info.vocabulary,
    )


async def _serve(
    legs: LegHost, info: InstanceInfo, server: Server, router: str | None, drain_timeout_s: float
) -> None:
    """Runs until the engine or the membership fails, or until it is cancelled and has drained."""
    pump = asyncio.create_task(legs.run())
    membership = None if router is None else asyncio.create_task(stay_joined(router, info))
    tasks = [pump] if membership is None else [pump, membership]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except asyncio.CancelledError:
        if membership is not None:
            membership.cancel()
        await server.set_serving(False)
        legs.refuse(Unavailable(f"{info.instance_id} is shutting down"))
        deadline = time.monotonic() + drain_timeout_s
        # What is waited for happens in the engine, which tells nobody of a handoff's end.
        while time.monotonic() < deadline and not pump.done() and not await _is_idle(legs):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)
        legs.finish()
        await server.stop(max(0.0, deadline - time.monotonic()))
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _is_idle(legs: LegHost) -> bool:
    """Whether no leg runs and no handoff waits for its pull."""
    return not legs.leg_count and not (await legs.engine.load()).open_handoffs
