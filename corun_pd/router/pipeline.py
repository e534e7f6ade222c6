"""A sample's way: pick decode, pick prefill, `first = await prefill(...)`, `async for ... in decode(first)`.

What holds on every path, whether it ends well, fails or is cancelled: the room that was reserved is given
back, a leg that runs is cancelled, and a ticket that nobody will pull any more is released. Nothing falls
back: a ticket that was asked for and is missing, or does not fit the prompt, fails the sample.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from corun_pd.core import Edge, FinishReason, KvHandoff, SamplingParams, TokenLogprobs, prompt_digest
from corun_pd.errors import CorunError, HandoffRejected
from corun_pd.router.admission import Admission, Reservation
from corun_pd.router.detokenize import TextWriter
from corun_pd.router.fleet import Member
from corun_pd.router.legs import LegTokens, Prefilled
from corun_pd.router.policy import Demand, Route
from corun_pd.telemetry import Telemetry

__all__ = ["Delta", "Pipeline", "Place", "Sample"]

#: A ticket with less of its lease left than this is not passed on, in seconds: the pull takes time too.
LEASE_MARGIN_S: Final = 1.0


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

    async def run(self, sample: Sample, route: Route) -> AsyncGenerator[Delta, None]:
        """A sample from the queue to its last delta. Close it (`aclosing`). Raises what ended it early."""
        self._edge(Edge.QUEUED, sample)
        try:
            demand = Demand(len(sample.prompt), sample.sampling.max_tokens)
            with await self._admission.admit(route, demand) as room:
                sample.admitted_at = time.monotonic()
                way = self._colocated if route is Route.COLOCATED else self._disaggregated
                async with aclosing(way(sample, room)) as deltas:
                    async for delta in deltas:
                        yield delta
        except (asyncio.CancelledError, GeneratorExit):
            self._edge(Edge.CANCELLED, sample)
            raise
        except CorunError as error:
            self._edge(Edge.FAILED, sample, reason=error.reason)
            raise
        self._edge(Edge.FINISHED, sample)

    async def _disaggregated(self, sample: Sample, room: Reservation[Member]) -> AsyncGenerator[Delta, None]:
        prefill, decode = room.prefill, room.decode
        assert prefill is not None
        self._edge(Edge.PREFILL, sample, instance=prefill.info.instance_id)
        first = await prefill.prefill.prefill(
            sample.prompt, sample.sampling, sample.generation_id, hand_off=decode is not None
        )
        room.prompt_computed()
        with _Ticket(first.handoff, prefill, room, lambda: self._edge(Edge.DECODE, sample)) as ticket:
            delta = sample.render(_first_tokens(first))
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
                first.first,
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

    async def _colocated(self, sample: Sample, room: Reservation[Member]) -> AsyncGenerator[Delta, None]:
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


class _Ticket:
    """The KV handoff in the router's hand: pulled by a decode instance, or released on the way out."""

    def __init__(
        self,
        handoff: KvHandoff | None,
        prefill: Member,
        room: Reservation[Member],
        on_pulled: Callable[[], None],
    ) -> None:
        self._handoff = handoff
        self._on_pulled = on_pulled
        self._prefill = prefill
        self._room = room
        self._received_at = time.monotonic()
        self._is_open = handoff is not None

    def show(self, prompt: Sequence[int]) -> KvHandoff:
        """The ticket, with the time that it was held taken off its lease.

        Raises HandoffRejected when there is none, when its lease is nearly over, or when it is for another
        prompt or contract.
        """
        handoff = self._handoff
        if handoff is None:
            raise HandoffRejected("the prefill instance gave neither an end nor a handoff")
        left_s = handoff.lease_s - (time.monotonic() - self._received_at)
        problem = None
        if handoff.token_count != len(prompt):
            problem = f"it holds {handoff.token_count} tokens of a prompt of {len(prompt)}"
        elif handoff.prompt_digest != prompt_digest(prompt):
            problem = "it was made for another prompt"
        elif handoff.fingerprint != self._prefill.info.fingerprint:
            problem = f"it was made under contract {handoff.fingerprint}"
        elif left_s < LEASE_MARGIN_S:
            problem = f"{left_s:.3f} s of its lease are left; a pull needs {LEASE_MARGIN_S} s"
        if problem is not None:
            raise HandoffRejected(f"handoff {handoff.handoff_id}: {problem}", handoff_id=handoff.handoff_id)
        return replace(handoff, lease_s=left_s)

    def pulled(self) -> None:
        """A decode instance has the KV cache; the prefill instance's blocks are free."""
        if self._is_open:
            self._is_open = False
            self._room.prompt_pulled()
            self._on_pulled()

    def __enter__(self) -> "_Ticket":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open and self._handoff is not None:
            self._prefill.prefill.release(self._handoff.handoff_id)
            self._is_open = False
        self._room.prompt_pulled()
