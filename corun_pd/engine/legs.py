"""The bridge from an engine to the services: many calls share one engine.

    engine.steps() ─► LegHost.run ─► LegSession (one per call) ─► LegSession.batches ─► the wire

`LegHost.run` is the one consumer of the engine's steps. It never waits for a call: what a step gave is put
into the sessions' outboxes, and a call takes all that has gathered since it last looked. A call that does
not keep up is ended when its outbox is full, so that a slow router costs nobody else anything.

A session ends its legs and releases its handoffs when it is closed, whatever the reason.
"""

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from corun_pd.core import FirstToken, KvHandoff, SamplingParams, TokenLogprobs
from corun_pd.engine.base import Engine, EngineInfo, LegOutput, LegWork
from corun_pd.errors import CorunError, EngineFailed, InvalidRequest, Unavailable
from corun_pd.wire.pace import Pace

__all__ = ["LegHost", "LegSession", "SessionOutput"]

#: Between two batches, in seconds: less than a step of most engines.
BATCH_DISTANCE_S: Final = 0.002

#: An output and the id of its leg within the call.
SessionOutput = tuple[int, LegOutput]

#: How much may wait for a call that does not keep up. A token weighs 1, and so does each logprob entry.
OUTBOX_LIMIT: Final = 1 << 19

#: How much goes into one batch; far below the largest message, at some 10 bytes for each.
BATCH_LIMIT: Final = 1 << 16


@dataclass(slots=True)
class _Route:
    """Where a leg's outputs go, and what has gathered of a leg that does not stream.

    `owes_pull`: its call has still to be told that the KV cache was pulled.
    """

    session: "LegSession"
    leg_id: int
    stream: bool
    owes_pull: bool
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class LegHost:
    """Owns an engine and routes its outputs. `info` is there once `start` has returned."""

    info: EngineInfo

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._routes: dict[str, _Route] = {}
        self._sessions: set[LegSession] = set()
        # Names are not used twice, not even by the next process on this port: handoffs carry them.
        self._names = (f"{uuid.uuid4().hex[:8]}-{number}" for number in itertools.count())
        self._refusal: CorunError | None = Unavailable("the engine is starting")

    @property
    def leg_count(self) -> int:
        """Legs under way, over all calls."""
        return len(self._routes)

    async def start(self) -> EngineInfo:
        """Starts the engine. Raises what `Engine.start` raises."""
        self.info = await self.engine.start()
        self._refusal = None
        return self.info

    async def run(self) -> None:
        """Routes outputs until the engine is closed. Raises EngineFailed when it dies.

        Either way every leg has failed and every call has ended by then.
        """
        try:
            async for outputs in self.engine.steps():
                self._route(outputs)
        except EngineFailed as error:
            self._shut(error)
            raise
        self._shut(Unavailable("the engine was closed"))

    def refuse(self, error: CorunError) -> None:
        """Fails every leg that is started from now on; those under way go on."""
        self._refusal = error

    def finish(self) -> None:
        """Ends every call with its last leg."""
        for session in self._sessions:
            session.finish()

    def open(self) -> "LegSession":
        """A session for one call. Whoever opens it closes it."""
        session = LegSession(self)
        self._sessions.add(session)
        return session

    def submit(self, route: _Route, work: LegWork) -> str:
        """Starts a leg; returns the engine's name for it. Raises the refusal in force."""
        if self._refusal is not None:
            raise self._refusal
        name = next(self._names)
        self._routes[name] = route
        self.engine.submit(replace(work, leg=name))
        return name

    def cancel(self, name: str) -> None:
        """Ends a leg without output."""
        if self._routes.pop(name, None) is not None:
            self.engine.cancel(name)

    def close(self, session: "LegSession") -> None:
        """Forgets a session."""
        self._sessions.discard(session)

    def _route(self, outputs: Sequence[LegOutput]) -> None:
        for output in outputs:
            route = self._routes.get(output.leg)
            if route is None:  # cancelled while the step ran
                for handoff in output.handoffs:
                    self.engine.release(handoff.handoff_id)
                continue
            if output.is_last:
                del self._routes[output.leg]
            if not route.stream:
                if output.prompt_logprobs is not None:
                    route.prompt_logprobs = output.prompt_logprobs
                if not output.is_last:
                    route.token_ids += output.token_ids
                    route.logprobs += output.logprobs
                    if route.owes_pull:
                        route.owes_pull = False
                        route.session.put(route.leg_id, LegOutput(output.leg))
                    continue
                if route.token_ids:
                    output = replace(
                        output,
                        token_ids=(*route.token_ids, *output.token_ids),
                        logprobs=(*route.logprobs, *output.logprobs),
                        prompt_logprobs=route.prompt_logprobs,
                    )
            route.session.put(route.leg_id, output)

    def _shut(self, error: CorunError) -> None:
        self._refusal = error
        routes = list(self._routes.items())
        self._routes.clear()
        for name, route in routes:
            route.session.put(route.leg_id, LegOutput(name, error=error))
        for session in self._sessions:
            session.end(error)


class LegSession:
    """The legs of one call, by the ids that the call gives them."""

    def __init__(self, host: LegHost) -> None:
        self._host = host
        self._names: dict[int, str] = {}
        self._handoffs: dict[str, float] = {}  # open ones, oldest first: when the lease ends
        self._outbox: deque[SessionOutput] = deque()
        self._weight = 0
        self._news = asyncio.Event()
        self._pace = Pace(BATCH_DISTANCE_S)
        self._has_all_starts = False
        self._is_closed = False
        self._end: CorunError | None = None

    def start(
        self,
        leg_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool,
        hand_off: bool = False,
        resume: tuple[FirstToken, KvHandoff] | None = None,
        sibling_seeds: tuple[int, ...] = (),
    ) -> None:
        """Starts a leg. What is wrong with it comes back as its output's error.

        A leg that streams has an output for every step; another one has all its tokens in the last one,
        and before that, if it resumes, an empty one when its KV cache has been pulled.

        Raises InvalidRequest when the id is in use: there is no telling the two legs apart, so the call
        must end.
        """
        if leg_id in self._names:
            raise InvalidRequest("leg_id", f"{leg_id} is in use")
        work = LegWork("", prompt, sampling, hand_off, resume, stream, sibling_seeds)
        self._names[leg_id] = ""
        try:
            self._names[leg_id] = self._host.submit(
                _Route(self, leg_id, stream, owes_pull=resume is not None), work
            )
        except CorunError as error:
            self.put(leg_id, LegOutput("", error=error))

    def fail(self, leg_id: int, error: CorunError) -> None:
        """Ends a leg that cannot be started. Raises InvalidRequest when the id is in use."""
        if leg_id in self._names:
            raise InvalidRequest("leg_id", f"{leg_id} is in use")
        self.put(leg_id, LegOutput("", error=error))

    def cancel(self, leg_id: int) -> bool:
        """Ends a leg without further output; False when it is over or unknown, and nothing happened."""
        name = self._names.pop(leg_id, None)
        if name is None:
            return False
        self._host.cancel(name)
        self._news.set()
        return True

    def release(self, handoff_id: str) -> None:
        """Frees a handoff of this call. Others are ignored."""
        if self._handoffs.pop(handoff_id, None) is not None:
            self._host.engine.release(handoff_id)

    def lease_left_s(self, handoff: KvHandoff) -> float:
        """What is left of the lease of a handoff of this call, in seconds."""
        return max(0.0, self._handoffs.get(handoff.handoff_id, 0.0) - time.monotonic())

    def put(self, leg_id: int, output: LegOutput) -> None:
        """Takes an output in. Never waits; ends the session when too much waits already."""
        if self._is_closed or self._end is not None:
            return
        if output.is_last:
            self._names.pop(leg_id, None)
        for handoff in output.handoffs:
            self._remember(handoff)
        self._outbox.append((leg_id, output))
        self._weight += _weight(output)
        if self._weight > OUTBOX_LIMIT:
            self._outbox.clear()
            self.end(Unavailable(f"the call reads too slowly: more than {OUTBOX_LIMIT} tokens wait for it"))
        self._news.set()

    def finish(self) -> None:
        """No more legs will be started: `batches` ends with the last one."""
        self._has_all_starts = True
        self._news.set()

    def end(self, error: CorunError) -> None:
        """Makes `batches` raise `error` once it has given what is there. The first error stays."""
        self._end = self._end or error
        self._news.set()

    async def batches(self) -> AsyncIterator[list[SessionOutput]]:
        """All that has come since the last batch, in order. Raises the error that ended the session."""
        while True:
            while self._outbox:
                await self._pace.turn()
                if self._outbox:
                    yield self._take()
            if self._end is not None:
                raise self._end
            if self._has_all_starts and not self._names:
                return
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Cancels what runs and releases what was handed off and may still be open."""
        self._is_closed = True
        for name in self._names.values():
            self._host.cancel(name)
        self._names.clear()
        for handoff_id in list(self._handoffs):
            self.release(handoff_id)
        self._host.close(self)

    def _take(self) -> list[SessionOutput]:
        batch: list[SessionOutput] = []
        weight = 0
        while self._outbox and weight < BATCH_LIMIT:
            batch.append(self._outbox.popleft())
            weight += _weight(batch[-1][1])
        self._weight -= weight
        return batch

    def _remember(self, handoff: KvHandoff) -> None:
        """Handoffs that were pulled are not told of; they are forgotten when their lease has ended."""
        now = time.monotonic()
        while self._handoffs and self._handoffs[oldest := next(iter(self._handoffs))] < now:
            del self._handoffs[oldest]
        self._handoffs[handoff.handoff_id] = now + handoff.lease_s


def _weight(output: LegOutput) -> int:
    weight = 1 + len(output.token_ids) + sum(_weight(sibling) for sibling in output.siblings)
    for entries in (output.logprobs, output.prompt_logprobs):
        if entries:
            weight += len(entries) * (1 + len(entries[0].top))
    return weight
