"""A sample's way: pick decode, pick prefill, await its first token, `async for ... in decode(first)`.

What holds on every path, whether it ends well, fails or is cancelled: the room that was reserved is given
back, a leg that runs is cancelled, and a ticket that nobody will pull any more is released. Nothing falls
back: a ticket that was asked for and is missing, or does not fit the prompt, fails the sample.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from corun_pd.core import Edge, FinishReason, SamplingParams, TokenLogprobs
from corun_pd.errors import CorunError
from corun_pd.router.admission import Admission
from corun_pd.router.detokenize import TextWriter
from corun_pd.router.fleet import Member
from corun_pd.router.legs import LegTokens, Prefilled
from corun_pd.router.policy import Demand, Route
from corun_pd.router.siblings import Siblings
from corun_pd.telemetry import Telemetry

__all__ = ["Delta", "Pipeline", "Place", "Sample"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample ran, by instance id. `decode` is empty when the first token was the last."""

    prefill: str
    decode: str = ""
    kv_moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """What came of a sample since the last one. The last one has `finish` and `place`.

    `stop` is the stop string or the stop token that ended it. One of them has the prompt's logprobs, when
    they were asked for.
    """

    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprobs] = ()
    finish: FinishReason | None = None
    stop: str | int | None = None
    place: Place | None = None
    prompt_logprobs: Sequence[TokenLogprobs] | None = None


@dataclass(slots=True)
class Sample:
    """One sample of a generation.

    `writer` None: neither text nor stop strings are wanted. `stream`: tokens are wanted as they come.
    `admitted_at` is when it left the queue, on the monotonic clock.
    """

    generation_id: str
    index: int
    prompt: Sequence[int]
    sampling: SamplingParams
    writer: TextWriter | None
    stream: bool
    admitted_at: float = 0.0

    def render(self, tokens: LegTokens) -> Delta:
        """Tokens with their text. A stop string ends the sample with the token that completed it."""
        delta = self._render(tokens)
        if tokens.prompt_logprobs is not None:
            delta = replace(delta, prompt_logprobs=tokens.prompt_logprobs)
        return delta

    def _render(self, tokens: LegTokens) -> Delta:
        if self.writer is None:
            return Delta(tokens.token_ids, "", tokens.logprobs, tokens.finish, tokens.stop_token_id)
        is_last, by_token = tokens.finish is not None, tokens.finish is FinishReason.STOP
        written = self.writer.push(tokens.token_ids, is_last, by_token)
        ids, logprobs = tokens.token_ids[: written.used], tokens.logprobs[: written.used]
        if written.stop is not None:
            return Delta(ids, written.text, logprobs, FinishReason.STOP, written.stop)
        return Delta(ids, written.text, logprobs, tokens.finish, tokens.stop_token_id)


class Pipeline:
    """Runs samples on the fleet that `admission` knows."""

    def __init__(self, admission: Admission[Member], telemetry: Telemetry) -> None:
        self._admission = admission
        self._telemetry = telemetry

    @contextmanager
    def open(self, samples: Sequence[Sample], route: Route) -> Iterator[list[AsyncGenerator[Delta, None]]]:
        """Runs samples of one prompt within the context; a stream for each, from the queue to its last delta.

        Where prefill and decode are apart, they share the prompt's computation. Close the streams
        (`aclosing`). They raise what ended their sample early; all of them are then to be closed.
        """
        if route is Route.COLOCATED:
            yield [self._run(sample, self._colocated(sample)) for sample in samples]
            return
        siblings = Siblings(self._admission, samples, self._edge)
        try:
            yield [
                self._run(sample, self._disaggregated(sample, siblings, at))
                for at, sample in enumerate(samples)
            ]
        finally:
            siblings.close()

    async def _run(self, sample: Sample, way: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        self._edge(Edge.QUEUED, sample)
        try:
            async with aclosing(way) as deltas:
                async for delta in deltas:
                    yield delta
        except (asyncio.CancelledError, GeneratorExit):
            self._edge(Edge.CANCELLED, sample)
            raise
        except CorunError as error:
            self._edge(Edge.FAILED, sample, reason=error.reason)
            raise
        self._edge(Edge.FINISHED, sample)

    async def _disaggregated(
        self, sample: Sample, siblings: Siblings[Sample], at: int
    ) -> AsyncGenerator[Delta, None]:
        with await siblings.start(at) as start:
            prefill, decode, ticket = start.prefill, start.decode, start.ticket
            delta = sample.render(_first_tokens(start.first))
            if delta.finish is not None:
                yield replace(delta, place=Place(prefill.info.instance_id))
                return
            handoff = ticket.show(sample.prompt)
            assert decode is not None  # a first token that is the only one has ended the sample
            self._edge(Edge.HANDED_OFF, sample, instance=decode.info.instance_id)
            with decode.decode.decode(
                sample.prompt,
                sample.sampling.for_decode(),
                sample.generation_id,
                start.first.first,
                handoff,
                stream=sample.stream,
                pulled=ticket.pulled,
            ) as stream:
                yield delta  # decode has started: a client that reads slowly does not hold the ticket up
                async for tokens in stream:
                    ticket.pulled()
                    delta = sample.render(tokens)
                    if delta.finish is None:
                        yield delta
                        continue
                    moved = tokens.kv_pulled_bytes or handoff.block_count * decode.info.block_bytes
                    yield replace(
                        delta, place=Place(prefill.info.instance_id, decode.info.instance_id, moved)
                    )
                    return

    async def _colocated(self, sample: Sample) -> AsyncGenerator[Delta, None]:
        demand = Demand(len(sample.prompt), sample.sampling.max_tokens)
        with await self._admission.admit(Route.COLOCATED, demand) as room:
            sample.admitted_at = time.monotonic()
            member = room.decode
            assert member is not None
            self._edge(Edge.PREFILL, sample, instance=member.info.instance_id)
            with member.colocated.generate(
                sample.prompt, sample.sampling, sample.generation_id, stream=sample.stream
            ) as stream:
                async for tokens in stream:
                    delta = sample.render(tokens)
                    if delta.finish is None:
                        yield delta
                        continue
                    yield replace(delta, place=Place(member.info.instance_id, member.info.instance_id))
                    return

    def _edge(self, edge: Edge, sample: Sample, **facts: object) -> None:
        self._telemetry.edge(edge, sample.generation_id, sample.index, **facts)


def _first_tokens(first: Prefilled) -> LegTokens:
    logprobs = () if first.first.logprobs is None else (first.first.logprobs,)
    return LegTokens(
        [first.first.token_id],
        logprobs,
        first.finish,
        first.stop_token_id,
        prompt_logprobs=first.prompt_logprobs,
    )
