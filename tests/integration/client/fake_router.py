"""A RouterService of a few lines, for what the client does on a real connection."""

# ruff: noqa: N802 - the wire's names

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from corun_pd.contract import Contract
from corun_pd.core import MAX_MESSAGE_BYTES, InstanceInfo, Role, TokenLogprobs
from corun_pd.errors import CorunError
from corun_pd.router.company import Seat
from corun_pd.router.many import ManyGenerations
from corun_pd.v1 import instance_pb2, router_pb2, router_pb2_grpc, sampling_pb2
from corun_pd.wire.convert import instance_to_pb, logprobs_to_pb
from corun_pd.wire.server import Service, build_server
from corun_pd.wire.status import abort


def _no_siblings(_: object) -> Any:
    raise AssertionError("this router has no legs")


CONTRACT = Contract({"model": "tiny"})
TOP = TokenLogprobs(-0.5, 1, ((3, -0.5), (4, float("-inf"))))


@dataclass
class FakeRouter(router_pb2_grpc.RouterServiceServicer):
    """Answers with the prompt's characters, one token each.

    A prompt in `errors` fails with what is there; one that starts with "hang" never ends, after as many
    messages as its length when it streams; one that starts with "slow" takes a while. A prompt in `texts`
    is taken for the text that is there; every answer takes `delay_s`.
    """

    errors: dict[str, CorunError] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    requests: list[router_pb2.Generation] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    on_request: Callable[[router_pb2.Generation], None] | None = None
    address: str = ""

    async def Generate(
        self, request: router_pb2.GenerateRequest, context: Any
    ) -> router_pb2.GenerateResponse:
        try:
            return await self._whole(request.generation)
        except CorunError as error:
            await abort(context, error)

    async def GenerateMany(
        self, request_iterator: AsyncIterator[router_pb2.GenerateManyRequest], context: Any
    ) -> None:
        await ManyGenerations(self._member, _no_siblings).serve(request_iterator, context.write)

    async def _member(
        self, generation: router_pb2.Generation, seat: Seat | None
    ) -> router_pb2.GenerateResponse:
        if seat is not None and (prompt := seat.company.first) is not generation:
            kind = prompt.WhichOneof("prompt")
            assert kind is not None
            assert generation.WhichOneof("prompt") is None
            if kind == "text":
                generation.text = prompt.text
            else:
                getattr(generation, kind).CopyFrom(getattr(prompt, kind))
        return await self._whole(generation)

    async def _whole(self, generation: router_pb2.Generation) -> router_pb2.GenerateResponse:
        text = await self._begin(generation)
        choices = []
        for index in range(generation.sample_count if generation.HasField("sample_count") else 1):
            choice = router_pb2.Choice(
                index=index,
                text=text,
                token_ids=[3] * len(text),
                finish_reason=sampling_pb2.FINISH_REASON_STOP,
                stop_string="!",
                seed=generation.sampling.seed + index,
                placement=router_pb2.Placement(prefill_instance_id="p", kv_moved_byte_count=10),
            )
            if generation.sampling.HasField("logprob_count"):
                choice.logprobs.CopyFrom(logprobs_to_pb([TOP] * len(text)))
            choices.append(choice)
        return router_pb2.GenerateResponse(
            generation_id=generation.generation_id or "minted",
            choices=choices,
            usage=router_pb2.Usage(prompt_token_count=2, completion_token_count=len(text) * len(choices)),
            system_fingerprint=CONTRACT.fingerprint,
            seed=generation.sampling.seed,
        )

    async def StreamGenerate(
        self, request: router_pb2.StreamGenerateRequest, context: Any
    ) -> AsyncIterator[router_pb2.StreamGenerateResponse]:
        generation = request.generation
        text = generation.text
        if not text.startswith("hang"):
            try:
                await self._begin(generation)
            except CorunError as error:
                await abort(context, error)
        ended = False

        def on_done(context: Any) -> None:
            self.running -= 1
            self.cancelled += not ended

        self.running += 1
        context.add_done_callback(on_done)
        yield router_pb2.StreamGenerateResponse(
            start=router_pb2.StreamStart(
                generation_id="minted",
                system_fingerprint=CONTRACT.fingerprint,
                seed=generation.sampling.seed,
                prompt_token_count=2,
            )
        )
        for at, character in enumerate(text):
            delta = router_pb2.ChoiceDelta(text=character, token_ids=[3])
            if at == len(text) - 1:
                delta.finish_reason = sampling_pb2.FINISH_REASON_STOP
                delta.stop_string = "!"
                delta.seed = generation.sampling.seed
                delta.placement.prefill_instance_id = "p"
            yield router_pb2.StreamGenerateResponse(deltas=[delta])
        if text.startswith("hang"):
            await asyncio.sleep(3600)
        usage = router_pb2.Usage(prompt_token_count=2, completion_token_count=len(text))
        ended = True
        yield router_pb2.StreamGenerateResponse(end=router_pb2.StreamEnd(usage=usage))

    async def DescribeFleet(
        self, request: router_pb2.DescribeFleetRequest, context: Any
    ) -> router_pb2.DescribeFleetResponse:
        contract = instance_pb2.Contract(settings=CONTRACT.as_json, fingerprint=CONTRACT.fingerprint)
        info = InstanceInfo(
            "c", Role.COLOCATED, "here:1", CONTRACT.fingerprint, CONTRACT.as_json, "models/tiny",
            slots=4, blocks=8, block_tokens=16, max_model_tokens=64, prefill_tokens=64, block_bytes=1,
            max_logprobs=5, vocabulary=300,
        )  # fmt: skip
        return router_pb2.DescribeFleetResponse(
            contract=contract,
            members=[router_pb2.FleetMember(instance=instance_to_pb(info), leg_count=1)],
            max_message_byte_count=MAX_MESSAGE_BYTES,
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something is so; a test that waits in vain fails."""
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.005)

    async def _begin(self, generation: router_pb2.Generation) -> str:
        self.requests.append(generation)
        if self.on_request is not None:
            self.on_request(generation)
        text = self.texts.get(generation.text, generation.text)
        if text in self.errors:
            raise self.errors[text]
        if text.startswith("hang"):
            await self._hang()
        if text.startswith("slow"):
            await asyncio.sleep(0.2)
        await asyncio.sleep(self.delay_s)
        return text[:1000]

    async def _hang(self) -> None:
        self.running += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


@asynccontextmanager
async def serve_router(port: int = 0) -> AsyncIterator[FakeRouter]:
    """A router on a port of its own."""
    router = FakeRouter()
    add = router_pb2_grpc.add_RouterServiceServicer_to_server
    server, _ = build_server("127.0.0.1", port, [Service("corun_pd.v1.RouterService", router, add)])
    router.address = server.address
    await server.start()
    await server.set_serving()
    try:
        yield router
    finally:
        await server.stop(0)
