"""A sample's way: pick decode, pick prefill, await its first token, `async for ... in decode(first)`.

What holds on every path, whether it ends well, fails or is cancelled: the room that was reserved is given
back, a leg that runs is cancelled, and a ticket that nobody will pull any more is released. Nothing falls
back: a ticket that was asked for and is missing, or does not fit the prompt, ends the way. After a fault of
an instance the sample takes another way, from its prompt on, and its reader sees no difference (`replay`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from corun_pd.core import Edge, FinishReason, SamplingParams, TokenLogprobs
from corun_pd.errors import ContractBroken, CorunError
from corun_pd.router.admission import Admission
from corun_pd.router.detokenize import TextWriter
from corun_pd.router.fleet import Member
from corun_pd.router.legs import LegTokens, Prefilled
from corun_pd.router.policy import Demand, Route
from corun_pd.router.replay import Transcript, is_fault
from corun_pd.router.siblings import Siblings
from corun_pd.telemetry import Telemetry

__all__ = ["Delta", "Pipeline", "Place", "Sample"]

logger = logging.getLogger(__name__)

#: Before a replay, in seconds: an instance that failed leaves the fleet meanwhile.
_PAUSE_S: Final = 0.05

#: A sample's run from its prompt to its last delta.
Way = AsyncGenerator["Delta", None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample ran, by instance id. `decode` is empty when the first token was the last.

    After `replays` replays, it is where the last of them ran.
    """

    prefill: str
    decode: str = ""
    kv_moved_bytes: int = 0
    replays: int = 0


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
    `admitted_at` is when it first left the queue, on the monotonic clock.
    """

    generation_id: str
    index: int
    prompt: Sequence[int]
    sampling: SamplingParams
    writer: TextWriter | None
    stream: bool
    admitted_at: float = 0.0
    transcript: Transcript = field(default_factory=Transcript)

    def render(self, tokens: LegTokens) -> Delta:
        """Tokens with their text, less those of a replay that the reader has. May be empty.

        A stop string ends the sample with the token that completed it. Raises ContractBroken where a replay
        differs.
        """
        tokens = self.transcript.fresh(tokens)
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

    def __init__(self, admission: Admission[Member], telemetry: Telemetry, max_replays: int) -> None:
        """`max_replays` is how often a sample is run again, at most."""
        self._admission = admission
        self._telemetry = telemetry
        self._max_replays = max_replays

    def gather(self, samples: Sequence[Sample]) -> Siblings[Sample]:
        """Samples of one prompt that share its computation where prefill and decode are apart."""
        return Siblings(self._admission, samples, self._edge)

    @contextmanager
    def open(
        self,
        samples: Sequence[Sample],
        route: Route,
        siblings: Siblings[Sample] | None = None,
        first: int = 0,
    ) -> Iterator[list[AsyncGenerator[Delta, None]]]:
        """Runs samples of one prompt within the context; a stream for each, from the queue to its last delta.

        They are those of `siblings` from `first` on, or siblings of each other. Close the streams
        (`aclosing`). They raise what ended their sample early; all of them are then to be closed.
        """
        if route is Route.COLOCATED:
            yield [self._run(sample, self._ways_colocated(sample)) for sample in samples]
            return
        siblings = siblings or self.gather(samples)
        try:
            yield [
                self._run(sample, self._ways_apart(sample, siblings, at))
                for at, sample in enumerate(samples, first)
            ]
        finally:
            for at in range(first, first + len(samples)):
                siblings.leave(at)

    async def _run(self, sample: Sample, ways: Iterator[Way]) -> AsyncGenerator[Delta, None]:
        """Goes the first way, and after each fault the next one. Raises the error that ended the last."""
        self._edge(Edge.QUEUED, sample)
        fault: CorunError | None = None
        try:
            for way in ways:
                try:
                    async with aclosing(way) as deltas:
                        async for delta in deltas:
                            if (
                                delta.token_ids
                                or delta.prompt_logprobs is not None
                                or delta.place is not None
                            ):
                                yield delta
                    break
                except CorunError as error:
                    if fault is not None and "role" in error.metadata:
                        raise fault from error  # nobody is left to replay on: what was lost is the news
                    if not self._may_replay(sample, error):
                        raise
                    fault = error
                await self._pause(sample, fault)
        except (asyncio.CancelledError, GeneratorExit):
            self._edge(Edge.CANCELLED, sample)
            raise
        except CorunError as error:
            if isinstance(error, ContractBroken):
                logger.error("generation %s, sample %d: %s", sample.generation_id, sample.index, error)
            self._edge(Edge.FAILED, sample, reason=error.reason)
            raise
        self._edge(Edge.FINISHED, sample)

    async def _pause(self, sample: Sample, fault: CorunError) -> None:
        """Before a replay."""
        sample.transcript.start_over()
        self._edge(Edge.REPLAYED, sample, reason=fault.reason)
        logger.warning(
            "generation %s, sample %d: replay %d of at most %d after %s: %s",
            sample.generation_id,
            sample.index,
            sample.transcript.replays,
            self._max_replays,
            fault.reason,
            fault,
        )
        await asyncio.sleep(_PAUSE_S)

    def _may_replay(self, sample: Sample, error: CorunError) -> bool:
        transcript = sample.transcript
        return is_fault(error) and transcript.can_repeat and transcript.replays < self._max_replays

    def _ways_colocated(self, sample: Sample) -> Iterator[Way]:
        while True:
            yield self._colocated(sample)

    def _ways_apart(self, sample: Sample, siblings: Siblings[Sample], at: int) -> Iterator[Way]:
        """With its siblings first, then on its own: they may be anywhere by then."""
        yield self._disaggregated(sample, siblings, at)
        while True:
            # It need not leave: there is nobody who could have got a start for it.
            yield self._disaggregated(sample, self.gather([sample]), 0)

    async def _disaggregated(self, sample: Sample, siblings: Siblings[Sample], at: int) -> Way:
        with await siblings.start(at) as start:
            prefill, decode, ticket = start.prefill, start.decode, start.ticket
            transcript = sample.transcript
            transcript.runs_on(prefill.info, None if decode is None else decode.info)
            delta = sample.render(_first_tokens(start.first))
            if delta.finish is not None:
                yield replace(delta, place=Place(prefill.info.instance_id, replays=transcript.replays))
                return
            assert decode is not None  # a first token that is the only one has ended the sample
            try:
                handoff = ticket.show(sample.prompt)
                self._edge(Edge.HANDED_OFF, sample, instance=decode.info.instance_id)
                stream = decode.decode.decode(
                    sample.prompt,
                    sample.sampling.for_decode(),
                    sample.generation_id,
                    start.first.first,
                    handoff,
                    stream=sample.stream,
                    pulled=ticket.pulled,
                )
            except CorunError:
                yield delta  # the transcript has it, so a replay will not give it again
                raise
            with stream:
                yield delta  # decode has started: a client that reads slowly does not hold the ticket up
                async for tokens in stream:
                    ticket.pulled()
                    delta = sample.render(tokens)
                    if delta.finish is None:
                        yield delta
                        continue
                    moved = tokens.kv_pulled_bytes or handoff.block_count * decode.info.block_bytes
                    names = prefill.info.instance_id, decode.info.instance_id
                    yield replace(delta, place=Place(*names, moved, transcript.replays))
                    return

    async def _colocated(self, sample: Sample) -> Way:
        demand = Demand(len(sample.prompt), sample.sampling.max_tokens)
        with await self._admission.admit(Route.COLOCATED, demand) as room:
            sample.admitted_at = sample.admitted_at or time.monotonic()
            member = room.decode
            assert member is not None
            sample.transcript.runs_on(member.info, None)
            self._edge(Edge.PREFILL, sample, instance=member.info.instance_id)
            with member.colocated.generate(
                sample.prompt, sample.sampling, sample.generation_id, stream=sample.stream
            ) as stream:
                async for tokens in stream:
                    delta = sample.render(tokens)
                    if delta.finish is None:
                        yield delta
                        continue
                    name = member.info.instance_id
                    yield replace(delta, place=Place(name, name, replays=sample.transcript.replays))
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
