"""Instances in this process, and raw calls to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from corun_pd.cluster.instance import serve_instance
from corun_pd.config import EngineConfig, FakeConfig
from corun_pd.core import InstanceInfo, InstanceLoad, Role, SamplingParams
from corun_pd.engine.fake import FakeEngine
from corun_pd.errors import CorunError
from corun_pd.v1 import (
    instance_pb2,
    instance_pb2_grpc,
    legs_pb2,
    legs_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
    sampling_pb2,
)
from corun_pd.wire.convert import load_from_pb, sampling_to_pb
from corun_pd.wire.server import Server, Service, build_server, open_channel
from corun_pd.wire.status import abort


@dataclass
class Instance:
    """A running instance, its engine, and a channel to it."""

    info: InstanceInfo
    engine: FakeEngine
    task: "asyncio.Task[None]"
    channel: Any

    async def load(self) -> InstanceLoad:
        stub = instance_pb2_grpc.InstanceServiceStub(self.channel)
        answer = await stub.DescribeInstance(instance_pb2.DescribeInstanceRequest())
        return load_from_pb(answer.load)

    async def until(self, holds: Callable[[InstanceLoad], bool]) -> InstanceLoad:
        """Waits until the load is such; a test that waits in vain fails by its time limit."""
        async with asyncio.timeout(10):
            while not holds(load := await self.load()):
                await asyncio.sleep(0.005)
        return load

    async def until_idle(self) -> InstanceLoad:
        return await self.until(
            lambda load: load.free_blocks == self.info.blocks and not load.running + load.waiting
        )

    def prefills(self) -> "Call":
        return Call(legs_pb2_grpc.PrefillServiceStub(self.channel).RunPrefills(), legs_pb2.RunPrefillsRequest)

    def decodes(self) -> "Call":
        return Call(legs_pb2_grpc.DecodeServiceStub(self.channel).RunDecodes(), legs_pb2.RunDecodesRequest)

    def generations(self) -> "Call":
        stub = legs_pb2_grpc.ColocatedServiceStub(self.channel)
        return Call(stub.RunGenerations(), legs_pb2.RunGenerationsRequest)


@dataclass
class Call:
    """One bidirectional call. Finishes, streamed tokens and pulls are kept by leg."""

    call: Any
    request: Any
    finishes: dict[int, Any] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[sampling_pb2.Logprobs]] = field(default_factory=dict)
    pulled: list[int] = field(default_factory=list)

    async def send(self, *starts: Any, **fields: Any) -> None:
        await self.call.write(self.request(starts=starts, **fields))

    async def read(self) -> bool:
        """One message; False at the end of the call."""
        response = await self.call.read()
        if not hasattr(response, "finishes"):
            return False
        self.finishes.update({finish.leg_id: finish for finish in response.finishes})
        self.pulled += getattr(response, "pulled_leg_ids", ())
        if hasattr(response, "tokens"):
            columns = response.tokens
            for leg_id, token in zip(columns.leg_ids, columns.token_ids, strict=True):
                self.tokens.setdefault(leg_id, []).append(token)
            for row, entry in zip(columns.logprob_rows, columns.logprobs, strict=True):
                self.logprobs.setdefault(columns.leg_ids[row], []).append(entry)
        return True

    async def finish(self, leg_id: int) -> Any:
        """Reads until a leg is over."""
        async with asyncio.timeout(10):
            while leg_id not in self.finishes:
                assert await self.read(), "the call ended"
        return self.finishes[leg_id]

    async def first_token(self, leg_id: int) -> None:
        """Reads until a leg has streamed a token."""
        async with asyncio.timeout(10):
            while leg_id not in self.tokens:
                assert await self.read(), "the call ended"
                assert leg_id not in self.finishes or leg_id in self.tokens, self.finishes[
                    leg_id
                ].error.message


def make_leg(leg_id: int, prompt: Any = (1, 2, 3), *, stream: bool = False, **sampling: Any) -> legs_pb2.Leg:
    params = SamplingParams(**{"max_tokens": 8, "seed": 7, "ignore_eos": True, **sampling})
    return legs_pb2.Leg(
        leg_id=leg_id,
        generation_id=f"g{leg_id}",
        prompt=sampling_pb2.TokenIds(ids=prompt),
        sampling=sampling_to_pb(params),
        stream=stream,
    )


def make_prefill(leg: legs_pb2.Leg, *, hand_off: bool = True) -> legs_pb2.RunPrefillsRequest.Start:
    return legs_pb2.RunPrefillsRequest.Start(leg=leg, hand_off=hand_off)


def make_decode(leg: legs_pb2.Leg, finish: Any) -> legs_pb2.RunDecodesRequest.Start:
    return legs_pb2.RunDecodesRequest.Start(leg=leg, first_token=finish.first_token, handoff=finish.handoff)


class Fleet(router_pb2_grpc.FleetServiceServicer):
    """A router's side of membership. It refuses with `refusal`; ids of those that come and go are queued."""

    server: Server

    def __init__(self, refusal: CorunError | None) -> None:
        self.refusal = refusal
        self.joined: asyncio.Queue[str] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()

    @property
    def address(self) -> str:
        return self.server.address

    async def JoinFleet(  # noqa: N802 - the wire's name
        self, request: router_pb2.JoinFleetRequest, context: Any
    ) -> AsyncIterator[router_pb2.JoinFleetResponse]:
        if self.refusal is not None:
            await abort(context, self.refusal)
        self.joined.put_nowait(request.instance.instance_id)
        try:
            yield router_pb2.JoinFleetResponse(fingerprint=request.instance.contract.fingerprint)
            await asyncio.Event().wait()
        finally:
            self.left.put_nowait(request.instance.instance_id)


@pytest.fixture
async def start_fleet() -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    """Starts routers that know membership only; ends them all after."""
    async with AsyncExitStack() as stack:

        async def start(refusal: CorunError | None = None, port: int = 0) -> Fleet:
            fleet = Fleet(refusal)
            add = router_pb2_grpc.add_FleetServiceServicer_to_server
            fleet.server, _ = build_server(
                "127.0.0.1", port, [Service("corun_pd.v1.FleetService", fleet, add)]
            )
            await fleet.server.start()
            stack.push_async_callback(fleet.server.stop, 0)
            return fleet

        yield start


Launch = Callable[..., Awaitable[Instance]]


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    """Starts instances: `await launch(Role.PREFILL, slots=4, decode_step_s=0.01)`; ends them all after."""
    async with AsyncExitStack() as stack:

        async def start(
            role: Role, *, router: str | None = None, drain_timeout_s: float = 0.0, **settings: Any
        ) -> Instance:
            fake = {name: settings.pop(name) for name in FakeConfig.model_fields if name in settings}
            options = {"slots": 4, "max_model_tokens": 2048, "block_tokens": 16, **settings}
            config = EngineConfig(kind="fake", fake=FakeConfig(**fake), **options)
            engine = FakeEngine(tmp_path, role, config, "127.0.0.1")
            ready: asyncio.Future[InstanceInfo] = asyncio.get_running_loop().create_future()
            serving = serve_instance(
                role,
                tmp_path,
                config,
                router=router,
                engine=engine,
                on_ready=ready.set_result,
                drain_timeout_s=drain_timeout_s,
            )
            task = asyncio.create_task(serving)
            await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            channel = await stack.enter_async_context(open_channel(ready.result().address))
            stack.push_async_callback(end, task)
            return Instance(ready.result(), engine, task, channel)

        yield start


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def leg() -> Callable[..., legs_pb2.Leg]:
    return make_leg


@pytest.fixture
def prefill_start() -> Callable[..., legs_pb2.RunPrefillsRequest.Start]:
    return make_prefill


@pytest.fixture
def decode_start() -> Callable[..., legs_pb2.RunDecodesRequest.Start]:
    return make_decode
