"""The fake engine: the schedule, the KV accounting and the handoff of a real one, without a model.

A step is either the prefill of one prompt, first come first served, or a decode step of N rows. A leg is
admitted when its whole sequence fits the pool. A decode engine pulls KV caches beside its steps, each for a
row that is free, and starts pulls between two steps, as vLLM's scheduler does.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corun_pd.config import EngineConfig
from corun_pd.core import FirstToken, InstanceLoad, KvHandoff, Role, TokenLogprobs, prompt_digest
from corun_pd.engine.base import EngineInfo, LegOutput, LegWork
from corun_pd.engine.fake.blocks import BlockPool
from corun_pd.engine.fake.faults import FakeFaults
from corun_pd.engine.fake.handoffs import Handoffs
from corun_pd.engine.fake.info import describe
from corun_pd.engine.fake.model import read_model
from corun_pd.engine.fake.side_channel import PullClient, PullServer
from corun_pd.engine.fake.tokens import Completion, TokenSource, prompt_logprobs
from corun_pd.errors import CorunError, EngineFailed, HandoffRejected, InvalidRequest

__all__ = ["FakeEngine"]


@dataclass(slots=True, eq=False)
class _Leg:
    """A leg under way. Token i of `completion` comes in decode step `base + i`."""

    work: LegWork
    blocks: tuple[int, ...] = ()
    pull: asyncio.Task[None] | None = None
    pulled_bytes: int = 0
    completion: Completion | None = None
    base: int = 0
    has_row: bool = False

    @property
    def last_step(self) -> int:
        return self.base + (len(self.completion.tokens) if self.completion else 0) - 1


class FakeEngine:
    """Implements `engine.base.Engine`.

    Output is the same colocated and handed over. With the standard role, and under ablations, it
    depends on co-runners: the control that must fail.
    """

    def __init__(self, model: Path, role: Role, config: EngineConfig, host: str) -> None:
        self.faults = FakeFaults()
        self._folder = model
        self._role = role
        self._config = config
        self._host = host
        self._legs: dict[str, _Leg] = {}
        self._waiting: deque[_Leg] = deque()  # for blocks
        self._admitted: deque[_Leg] = deque()  # for prefill
        self._handed_over: deque[_Leg] = deque()  # for a row to be free
        self._loading: set[_Leg] = set()  # have a row once they are pulled
        self._pulled: deque[_Leg] = deque()  # for their row, between two steps
        self._streaming: dict[str, _Leg] = {}
        self._endings: dict[int, dict[str, _Leg]] = {}  # by the decode step of the last token
        self._running = 0
        self._decode_steps = self._steps = self._rows = self._padding_rows = 0
        self._prefilled_tokens = self._sampled_tokens = self._kv_pulled_bytes = 0
        self._wake = asyncio.Event()
        self._outputs: deque[list[LegOutput]] = deque()
        self._has_outputs = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._failure: EngineFailed | None = None
        self._is_closed = False
        self._clock = 0.0

    async def start(self) -> EngineInfo:
        """See `Engine.start`. Takes no time."""
        if self.faults.never_ready:
            await asyncio.Event().wait()
        self._model = read_model(self._folder, self._config)
        self._info = describe(self._folder, self._role, self._config, self._model)
        self._pool = BlockPool(self._info.blocks)
        engine_id = f"fake-{uuid.uuid4().hex[:12]}"
        self._handoffs = Handoffs(engine_id, self._config, self._free, self.faults)
        self._pull_server = PullServer(self._handoffs.take)
        self._pull_client = PullClient()
        self._port = await self._pull_server.start(self._host) if self._role is Role.PREFILL else 0
        self._runner = asyncio.create_task(self._run())
        self._runner.add_done_callback(self._ran)
        return self._info

    async def close(self) -> None:
        """See `Engine.close`."""
        self._is_closed = True
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
            for name in list(self._legs):
                self.cancel(name)
            self._handoffs.close()
            self._pull_client.close()
            self._pull_server.close()
        self._has_outputs.set()

    def die(self, message: str = "the fake engine was told to die") -> None:
        """Ends the engine as a crash does: no output, no clean-up, no pulls. For tests."""
        self._failure = EngineFailed(message)
        if self._runner is not None:
            self._runner.cancel()
            self._pull_server.close()

    def _ran(self, runner: asyncio.Task[None]) -> None:
        """The end of the step loop ends `steps`, whatever the reason."""
        if not runner.cancelled() and (error := runner.exception()) is not None and self._failure is None:
            self._failure = EngineFailed(f"the fake engine has a bug: {error!r}")
            self._failure.__cause__ = error
        self._has_outputs.set()

    async def steps(self) -> AsyncIterator[Sequence[LegOutput]]:
        """See `Engine.steps`."""
        while True:
            while self._outputs:
                yield self._outputs.popleft()
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                return
            self._has_outputs.clear()
            await self._has_outputs.wait()

    async def load(self) -> InstanceLoad:
        """See `Engine.load`."""
        return InstanceLoad(
            running=self._running,
            waiting=len(self._legs) - self._running,
            free_blocks=len(self._pool),
            open_handoffs=len(self._handoffs),
            prefilled_tokens=self._prefilled_tokens,
            sampled_tokens=self._sampled_tokens,
            kv_pulled_bytes=self._kv_pulled_bytes,
            steps=self._steps,
            padding_rows=self._padding_rows,
            rows=self._rows,
        )

    def submit(self, work: LegWork) -> None:
        """See `Engine.submit`."""
        try:
            self._check(work)
        except CorunError as error:
            self._emit([LegOutput(work.leg, error=error)])
            return
        leg = self._legs[work.leg] = _Leg(work)
        self._waiting.append(leg)
        self._admit()

    def cancel(self, leg: str) -> None:
        """See `Engine.cancel`."""
        if (found := self._legs.get(leg)) is not None:
            self._end(found)

    def release(self, handoff_id: str) -> None:
        """See `Engine.release`."""
        self._handoffs.release(handoff_id)

    def _check(self, work: LegWork) -> None:
        """Refuses what could never run, so that nothing waits for ever."""
        total = len(work.prompt) + work.sampling.max_tokens
        if not work.prompt:
            raise InvalidRequest("prompt", "is empty")
        if total > self._info.max_model_tokens:
            raise InvalidRequest(
                "sampling.max_tokens",
                f"{len(work.prompt)} prompt tokens and {work.sampling.max_tokens} more are above the model's "
                f"limit of {self._info.max_model_tokens}",
            )
        if self._need(work) > self._info.blocks:
            raise InvalidRequest(
                "prompt", f"needs {self._need(work)} KV blocks; there are {self._info.blocks}"
            )
        if work.hand_off and self._role is not Role.PREFILL:
            raise InvalidRequest("hand_off", f"a {self._role} engine hands nothing off")
        if work.sibling_seeds and self._role is not Role.PREFILL:
            raise InvalidRequest("sibling_seeds", f"a {self._role} engine takes one sample a leg")
        if (work.resume is not None) != (self._role is Role.DECODE):
            raise HandoffRejected("a decode engine needs a handoff, and no other engine takes one")

    def _need(self, work: LegWork) -> int:
        """Blocks of the whole sequence; a leg that hands off has its prompt only."""
        tokens = len(work.prompt) + (0 if work.hand_off else work.sampling.max_tokens)
        return -(-tokens // self._info.block_tokens)

    def _admit(self) -> None:
        """Gives legs their blocks, in order, for as long as the next one's whole sequence fits."""
        while self._waiting:
            leg = self._waiting[0]
            if leg.work.leg in self._legs:
                blocks = self._pool.allocate(self._need(leg.work))
                if blocks is None:
                    break
                leg.blocks = blocks
                if leg.work.resume is None:
                    self._admitted.append(leg)
                else:
                    self._handed_over.append(leg)
            self._waiting.popleft()
        self._wake.set()

    def _free(self, blocks: tuple[int, ...]) -> None:
        self._pool.free(blocks)
        self._admit()

    def _end(self, leg: _Leg) -> None:
        """Takes a leg out of everything. Queues drop it when they come to it."""
        del self._legs[leg.work.leg]
        if leg.pull is not None:
            leg.pull.cancel()
        self._loading.discard(leg)
        if leg.has_row:
            self._running -= 1
            self._streaming.pop(leg.work.leg, None)
            self._endings.get(leg.last_step, {}).pop(leg.work.leg, None)
        self._free(leg.blocks)

    def _fail(self, leg: _Leg, error: CorunError) -> None:
        self._end(leg)
        self._emit([LegOutput(leg.work.leg, kv_pulled_bytes=leg.pulled_bytes, error=error)])

    def _emit(self, outputs: list[LegOutput]) -> None:
        if outputs:
            self._outputs.append(outputs)
            self._has_outputs.set()

    def _source(self, leg: _Leg, digest: bytes, seed: int | None = None) -> TokenSource:
        """The leg's, or a sibling's. Raises EngineFailed for a leg that a test wants to fail."""
        if self.faults.fail_leg is not None and self.faults.fail_leg(leg.work):
            raise EngineFailed(f"leg {leg.work.leg} was told to fail")
        depends_on_corunners = self._role is Role.STANDARD or self._config.ablate
        crowd = len(self._legs) if depends_on_corunners else 0
        sampling = leg.work.sampling if seed is None else replace(leg.work.sampling, seed=seed)
        return TokenSource(self._model, digest, sampling, self.faults.salt + crowd)

    def _start_pulls(self) -> None:
        """Pulls as many KV caches as there are rows that nothing else has or waits for."""
        while self._handed_over and self._running + len(self._loading) < self._info.slots:
            leg = self._handed_over.popleft()
            if leg.work.leg in self._legs and leg.work.resume is not None:
                self._loading.add(leg)
                leg.pull = asyncio.create_task(self._pull(leg, *leg.work.resume))

    async def _pull(self, leg: _Leg, first: FirstToken, handoff: KvHandoff) -> None:
        """Pulls a leg's KV cache; what it draws from then on depends on what was pulled."""
        try:
            if self._config.fake.transfer_s:
                await asyncio.sleep(self._config.fake.transfer_s)
            digest = await self._pull_client.pull(handoff)
            leg.pulled_bytes = handoff.block_count * self._info.block_bytes
            self._kv_pulled_bytes += leg.pulled_bytes
            if digest != prompt_digest(leg.work.prompt):
                raise HandoffRejected("the KV cache is that of another prompt", handoff_id=handoff.handoff_id)
            source = self._source(leg, digest)
        except CorunError as error:
            leg.pull = None  # This task, which `_fail` must not cancel.
            self._fail(leg, error)
            return
        source.feed(first.token_id)
        leg.completion = source.complete()
        self._pulled.append(leg)
        self._wake.set()
        if not leg.work.stream:
            self._emit([LegOutput(leg.work.leg)])

    async def _run(self) -> None:
        while True:
            self._start_pulls()
            has_room = self._running < self._info.slots
            if has_room and self._pulled:
                self._take_row(self._pulled.popleft(), self._decode_steps + 1)
            elif has_room and self._admitted:
                await self._prefill_step(self._admitted.popleft())
            elif self._running:
                await self._decode_step()
            else:
                self._wake.clear()
                await self._wake.wait()
                self._clock = time.monotonic()
            if self.faults.die_after_steps is not None and self._steps >= self.faults.die_after_steps:
                self.die(f"the fake engine died after {self._steps} steps")

    async def _prefill_step(self, leg: _Leg) -> None:
        """One prompt, whole: gives its first token, and then a handoff, a row, or the end."""
        if leg.work.leg not in self._legs:
            return
        await self._spend(self._config.fake.prefill_s_per_token * len(leg.work.prompt))
        self._steps += 1
        self._rows += len(leg.work.prompt)
        self._prefilled_tokens += len(leg.work.prompt)
        self._sampled_tokens += 1 + len(leg.work.sibling_seeds)
        if leg.work.leg not in self._legs:
            return
        limit = 1 if leg.work.hand_off else None
        digest = prompt_digest(leg.work.prompt)
        try:
            leg.completion = self._source(leg, digest).complete(limit)
            siblings = [self._source(leg, digest, seed).complete(limit) for seed in leg.work.sibling_seeds]
        except EngineFailed as error:
            self._fail(leg, error)
            return
        if len(leg.completion.tokens) == 1:
            self._end_with_first_tokens(leg, [leg.completion, *siblings])
        else:
            self._take_row(leg, self._decode_steps)
            if leg.work.stream:
                self._emit([_row(leg, leg.completion, 0)])

    def _end_with_first_tokens(self, leg: _Leg, completions: Sequence[Completion]) -> None:
        """The leg is over. Its blocks become those of all handoffs that go on from the prompt, if any do."""
        blocks, leg.blocks = leg.blocks, ()
        self._end(leg)
        holders = sum(completion.finish_reason is None for completion in completions)
        if holders:
            self._pool.share(blocks, holders - 1)
        else:
            self._free(blocks)
        work = leg.work
        outputs = []
        for number, completion in enumerate(completions):
            handoff = None
            if completion.finish_reason is None:
                name = f"{work.leg}.{number}" if number else work.leg
                handoff = self._handoffs.issue(
                    name, work.prompt, blocks, self._info.contract.fingerprint, self._host, self._port
                )
            outputs.append(
                LegOutput(
                    work.leg,
                    completion.tokens,
                    completion.logprobs,
                    completion.finish_reason,
                    completion.stop_token_id,
                    handoff,
                )
            )
        first, *siblings = outputs
        self._emit([replace(first, prompt_logprobs=_prompt_logprobs(leg), siblings=tuple(siblings))])

    def _take_row(self, leg: _Leg, base: int) -> None:
        self._loading.discard(leg)
        if leg.work.leg not in self._legs:
            return
        leg.base = base
        leg.has_row = True
        self._running += 1
        self._endings.setdefault(leg.last_step, {})[leg.work.leg] = leg
        if leg.work.stream:
            self._streaming[leg.work.leg] = leg

    async def _decode_step(self) -> None:
        """One token for every row. The work is in proportion to the rows that stream or end."""
        await self._spend(self._config.fake.decode_step_s)
        self._steps += 1
        self._decode_steps += 1
        self._rows += self._info.slots
        self._padding_rows += self._info.slots - self._running
        self._sampled_tokens += self._running
        endings = self._endings.pop(self._decode_steps, {})
        outputs = [
            _row(leg, leg.completion, self._decode_steps - leg.base)
            for leg in self._streaming.values()
            if leg.completion is not None
        ]
        for leg in endings.values():
            self._end(leg)
            if not leg.work.stream and leg.completion is not None:
                outputs.append(_whole(leg, leg.completion))
        self._emit(outputs)

    async def _spend(self, seconds: float) -> None:
        """Lets a step's time pass. Steps keep their rate: a timer that fires late shortens the next one."""
        if not seconds:
            await asyncio.sleep(0)
            return
        now = time.monotonic()
        self._clock = max(self._clock, now - seconds) + seconds
        await asyncio.sleep(self._clock - now)


def _row(leg: _Leg, completion: Completion, index: int) -> LegOutput:
    """Token `index` of a leg that streams."""
    logprobs = completion.logprobs[index : index + 1]
    prompt = None if index else _prompt_logprobs(leg)
    if index + 1 < len(completion.tokens):
        tokens = completion.tokens[index : index + 1]
        return LegOutput(leg.work.leg, tokens, logprobs, prompt_logprobs=prompt)
    return LegOutput(
        leg.work.leg,
        completion.tokens[index : index + 1],
        logprobs,
        completion.finish_reason,
        completion.stop_token_id,
        kv_pulled_bytes=leg.pulled_bytes,
        prompt_logprobs=prompt,
    )


def _whole(leg: _Leg, completion: Completion) -> LegOutput:
    """A leg that does not stream."""
    return LegOutput(
        leg.work.leg,
        completion.tokens,
        completion.logprobs,
        completion.finish_reason,
        completion.stop_token_id,
        kv_pulled_bytes=leg.pulled_bytes,
        prompt_logprobs=_prompt_logprobs(leg),
    )


def _prompt_logprobs(leg: _Leg) -> tuple[TokenLogprobs, ...] | None:
    return prompt_logprobs(leg.work.prompt, leg.work.sampling.prompt_logprobs)
