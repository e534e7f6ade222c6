"""The router's two services: RouterService for clients, FleetService for instances."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from corun_pd.config import RouterConfig
from corun_pd.core import MAX_MESSAGE_BYTES, TokenLogprobs
from corun_pd.errors import CorunError, Unavailable
from corun_pd.router.admission import Admission
from corun_pd.router.answers import choice_of, delta_to_pb, scored_prompt, timings_to_pb
from corun_pd.router.company import Seat
from corun_pd.router.fleet import Fleet, Member
from corun_pd.router.many import ManyGenerations
from corun_pd.router.merge import merge
from corun_pd.router.pipeline import Delta, Pipeline, Sample
from corun_pd.router.policy import Route
from corun_pd.router.siblings import Siblings
from corun_pd.router.text import TextModel
from corun_pd.router.validate import Task, resolve
from corun_pd.telemetry import Telemetry
from corun_pd.v1 import instance_pb2, router_pb2, router_pb2_grpc
from corun_pd.wire.convert import instance_from_pb, instance_to_pb, load_to_pb
from corun_pd.wire.status import abort

__all__ = ["FleetService", "RouterService"]

GenerateContext = grpc.aio.ServicerContext[router_pb2.GenerateRequest, router_pb2.GenerateResponse]
ManyContext = grpc.aio.ServicerContext[router_pb2.GenerateManyRequest, router_pb2.GenerateManyResponse]
StreamContext = grpc.aio.ServicerContext[router_pb2.StreamGenerateRequest, router_pb2.StreamGenerateResponse]
DescribeContext = grpc.aio.ServicerContext[router_pb2.DescribeFleetRequest, router_pb2.DescribeFleetResponse]
JoinContext = grpc.aio.ServicerContext[router_pb2.JoinFleetRequest, router_pb2.JoinFleetResponse]


@dataclass(slots=True)
class _Generation:
    """A generation under way: its samples, and when what happened."""

    task: Task
    route: Route
    fingerprint: str
    samples: list[Sample]
    arrived_at: float
    first_token_at: float = 0.0
    completion_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprobs] | None = None

    def seed(self, index: int) -> int:
        return self.task.seeds[index]

    def count(self, delta: Delta) -> None:
        self.first_token_at = self.first_token_at or time.monotonic()
        self.completion_tokens += len(delta.token_ids)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs

    def prompt(self) -> router_pb2.ScoredPrompt | None:
        """The prompt with its logprobs, when they were asked for. Raises EngineFailed when any is missing."""
        if self.task.sampling.prompt_logprobs is None:
            return None
        return scored_prompt(self.task.prompt, self.prompt_logprobs)

    def usage(self) -> router_pb2.Usage:
        return router_pb2.Usage(
            prompt_token_count=len(self.task.prompt), completion_token_count=self.completion_tokens
        )

    def timings(self) -> router_pb2.Timings:
        admitted = min((s.admitted_at for s in self.samples if s.admitted_at), default=self.arrived_at)
        return timings_to_pb(self.arrived_at, admitted, self.first_token_at, time.monotonic())


class RouterService(router_pb2_grpc.RouterServiceServicer):
    """Runs generations. A client that goes away cancels its legs on both sides at once."""

    def __init__(
        self, config: RouterConfig, text: TextModel, fleet: Fleet, admission: Admission[Member]
    ) -> None:
        self.running = 0
        self.is_draining = False
        self.telemetry = Telemetry()
        self._config = config
        self._text = text
        self._fleet = fleet
        self._admission = admission
        self._pipeline = Pipeline(admission, self.telemetry, config.max_replays)

    async def Generate(  # noqa: N802 - the wire's name
        self, request: router_pb2.GenerateRequest, context: GenerateContext
    ) -> router_pb2.GenerateResponse:
        """A generation, whole."""
        try:
            return await self._generate(request.generation)
        except CorunError as error:
            await abort(context, error)

    async def _generate(
        self, message: router_pb2.Generation, seat: Seat | None = None
    ) -> router_pb2.GenerateResponse:
        self.running += 1
        try:
            generation = await self._begin(message, stream=False, seat=seat)
            if seat is None:
                return await self._whole(generation)
            return await self._whole(generation, *await seat.take(generation.samples, generation.route))
        finally:
            self.running -= 1

    async def GenerateMany(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[router_pb2.GenerateManyRequest], context: ManyContext
    ) -> None:
        """Many generations, each whole."""
        try:
            many = ManyGenerations(self._generate, self._pipeline.gather)
            await many.serve(request_iterator, context.write)
        except CorunError as error:
            await abort(context, error)

    async def StreamGenerate(  # noqa: N802 - the wire's name
        self, request: router_pb2.StreamGenerateRequest, context: StreamContext
    ) -> None:
        """A generation as it comes."""
        self.running += 1
        try:
            generation = await self._begin(request.generation, stream=True)
            await self._stream(generation, context)
        except CorunError as error:
            await abort(context, error)
        finally:
            self.running -= 1

    async def DescribeFleet(  # noqa: N802 - the wire's name
        self, _: router_pb2.DescribeFleetRequest, context: DescribeContext
    ) -> router_pb2.DescribeFleetResponse:
        """Who has joined, and what they do."""
        members = self._fleet.members
        loads = await asyncio.gather(*(member.load() for member in members))
        contract = instance_pb2.Contract()
        if members:
            info = members[0].info
            contract = instance_pb2.Contract(settings=info.settings, fingerprint=info.fingerprint)
        return router_pb2.DescribeFleetResponse(
            contract=contract if members else None,
            members=[
                router_pb2.FleetMember(
                    instance=instance_to_pb(member.info),
                    load=None if load is None else load_to_pb(load),
                    leg_count=member.legs,
                    reserved_block_count=member.blocks,
                )
                for member, load in zip(members, loads, strict=True)
            ],
            running_count=self.running,
            waiting_count=self._admission.waiting,
            max_message_byte_count=MAX_MESSAGE_BYTES,
        )

    async def _begin(
        self, message: router_pb2.Generation, stream: bool, seat: Seat | None = None
    ) -> _Generation:
        arrived_at = time.monotonic()
        if self.is_draining:
            raise Unavailable("the router is shutting down")
        task = await resolve(
            message,
            self._text,
            self._fleet.limits,
            self._config.default_completion_tokens,
            None if seat is None else seat.company,
        )
        samples = [self._sample(task, index, stream) for index in range(len(task.seeds))]
        fingerprint = self._fleet.some_info.fingerprint
        return _Generation(task, self._admission.route(task.route), fingerprint, samples, arrived_at)

    def _sample(self, task: Task, index: int, stream: bool) -> Sample:
        writer = None
        if task.text or task.stops:
            writer = self._text.writer(
                task.prompt, task.stops, task.include_stop, task.sampling.min_tokens, task.echo
            )
        # Only as tokens come can a stop string be seen before the engine goes on past it.
        return Sample(
            generation_id=task.generation_id,
            index=index,
            prompt=task.prompt,
            sampling=task.sampling.for_sibling(task.seeds[index]) if index else task.sampling,
            writer=writer,
            stream=stream or bool(task.stops),
        )

    async def _whole(
        self, generation: _Generation, siblings: Siblings[Sample] | None = None, first: int = 0
    ) -> router_pb2.GenerateResponse:
        """The answer. The samples are those of `siblings` from `first` on, or siblings of each other."""
        task = generation.task
        deltas: list[list[Delta]] = [[] for _ in generation.samples]
        with self._pipeline.open(generation.samples, generation.route, siblings, first) as runs:
            if len(runs) == 1:
                async with aclosing(runs[0]) as run:
                    async for delta in run:
                        generation.count(delta)
                        deltas[0].append(delta)
            else:
                async with aclosing(merge(runs)) as merged:
                    async for items in merged:
                        for index, delta in items:
                            generation.count(delta)
                            deltas[index].append(delta)
        return router_pb2.GenerateResponse(
            generation_id=task.generation_id,
            choices=[
                choice_of(index, generation.seed(index), deltas[index], task.text)
                for index in range(len(task.seeds))
            ],
            usage=generation.usage(),
            system_fingerprint=generation.fingerprint,
            seed=task.sampling.seed,
            timings=generation.timings(),
            prompt=generation.prompt(),
        )

    async def _stream(self, generation: _Generation, context: StreamContext) -> None:
        task = generation.task
        start: router_pb2.StreamStart | None = router_pb2.StreamStart(
            generation_id=task.generation_id,
            system_fingerprint=generation.fingerprint,
            seed=task.sampling.seed,
            prompt_token_count=len(task.prompt),
        )
        running = len(task.seeds)
        with self._pipeline.open(generation.samples, generation.route) as runs:
            async with aclosing(merge(runs)) as merged:
                async for items in merged:
                    message = router_pb2.StreamGenerateResponse(start=start)
                    start = None
                    for index, delta in items:
                        generation.count(delta)
                        running -= delta.finish is not None
                        message.deltas.append(delta_to_pb(index, generation.seed(index), delta, task.text))
                    if not running:
                        message.end.usage.CopyFrom(generation.usage())
                        message.end.timings.CopyFrom(generation.timings())
                        if (prompt := generation.prompt()) is not None:
                            message.end.prompt.CopyFrom(prompt)
                    await context.write(message)


class FleetService(router_pb2_grpc.FleetServiceServicer):
    """Takes instances in. Membership lasts as long as the call."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def JoinFleet(  # noqa: N802 - the wire's name
        self, request: router_pb2.JoinFleetRequest, context: JoinContext
    ) -> None:
        """Makes the instance a member until it ends the call, or the router's call to it is lost."""
        try:
            member, call = await self._fleet.join(instance_from_pb(request.instance))
            try:
                await context.write(router_pb2.JoinFleetResponse(fingerprint=member.info.fingerprint))
                await asyncio.wait({call})
            finally:
                self._fleet.leave(member)
            call.result()
            raise Unavailable("the router's call to the instance has ended")
        except CorunError as error:
            await abort(context, error)
