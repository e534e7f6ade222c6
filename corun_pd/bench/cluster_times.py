"""What steps take in a running cluster, by when its clients have their tokens.

A cost profile of these is of the cluster as it stands: its pinning, what runs beside each engine, and what
streaming costs are in it. Times are in seconds.
"""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import ParamSpec, TypeVar

from corun_pd.bench.quiet import quietly
from corun_pd.bench.workloads import EngineRequest, make_engine_requests
from corun_pd.client import AsyncClient
from corun_pd.core import InstanceInfo, Role
from corun_pd.errors import ConfigError, InvalidRequest

__all__ = ["Answer", "ClusterTimes", "SpeedProbe", "ask", "measure_cluster", "measure_router"]

#: Prefill steps of one kind that are measured, tokens of a row, and decode steps of a sample.
PREFILL_STEPS, ANSWER, WINDOW = 8, 48, 8
#: Lengths of prompts beside N rows, and pulls of each length.
KV_LEVELS, PULLS = 3, 3
#: Tokens of a short prompt, and requests that are refused to time the router.
SHORT, REFUSALS = 16, 48
#: Of rows beside prompts: their tokens, the prompts until all have joined, and those that are measured.
BESIDE_ANSWER, BLOCKERS, BESIDE_STEPS = 192, 4, 12

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample: when it was asked for and when each of its tokens came, on time.perf_counter's clock."""

    asked_s: float
    token_s: Sequence[float]

    @property
    def ttft_s(self) -> float:
        """Until the first token."""
        return self.token_s[0] - self.asked_s

    @property
    def tpot_s(self) -> float | None:
        """The mean gap after it; None when it is the only one."""
        gaps = len(self.token_s) - 1
        return (self.token_s[-1] - self.token_s[0]) / gaps if gaps else None


@dataclass(frozen=True, slots=True)
class ClusterTimes:
    """As `StepTimes` has them: `prompts` are (tokens, prompts in a step, seconds), `decode` (KV tokens that a
    step of N rows reads, seconds), `transfers` (bytes, seconds from the first token to the second, KV tokens
    of its step). `one_row` is as `decode`, of a step that holds one sequence. `beside_prefill` and
    `beside_decode` are of steps while another instance takes the others. `refusal_s` is what a request takes
    that the router refuses, among many; `ttft_s` are times to the first token of the prompts in
    `ttft_tokens`, one at a time. `foreign_cores` is what others used of the machine at most.
    """

    prompts: Sequence[tuple[int, int, float]]
    decode: Sequence[tuple[int, float]]
    one_row: Sequence[tuple[int, float]]
    refusal_s: float
    ttft_tokens: int
    ttft_s: Sequence[float]
    transfers: Sequence[tuple[int, float, int]] = ()
    beside_prefill: Sequence[tuple[int, int, float]] = ()
    beside_decode: Sequence[tuple[int, float]] = ()
    foreign_cores: float = 0.0


async def ask(client: AsyncClient, request: EngineRequest, samples: int = 1) -> list[Answer]:
    """Streams a request of some samples of its full length; an answer for each."""
    sampling = request.sampling
    asked_s = time.perf_counter()
    times: list[list[float]] = [[] for _ in range(samples)]
    async for delta in client.stream(
        list(request.prompt),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed,
        n=samples,
        ignore_eos=True,
        tokens_only=True,
    ):
        times[delta.index] += [time.perf_counter()] * len(delta.token_ids)
    return [Answer(asked_s, one) for one in times]


async def measure_cluster(client: AsyncClient, longest: int) -> ClusterTimes:
    """Measures an idle cluster of one or more instances of each role. `longest` is of prompts, in tokens.

    Raises ConfigError when its KV pools do not hold N rows of the shortest kind.
    """
    fleet = await client.describe()
    infos = [member.instance for member in fleet.members]
    async with client.shared() as shared:
        return await _Probe(shared, infos, longest).measure()


async def measure_router(client: AsyncClient) -> tuple[float, int, Sequence[float]]:
    """`refusal_s`, `ttft_tokens` and `ttft_s` of `ClusterTimes` alone, of an idle cluster."""
    infos = [member.instance for member in (await client.describe()).members]
    async with client.shared() as shared:
        probe = _Probe(shared, infos, SHORT)
        await probe.first_tokens()  # the first of everything is slow
        return await probe.refusals(), SHORT, await probe.first_tokens()


class SpeedProbe:
    """How fast an idle cluster is at the moment: a machine drifts. Make one in the client's event loop."""

    def __init__(self, client: AsyncClient, infos: Sequence[InstanceInfo], longest: int) -> None:
        self._probe = _Probe(client, infos, longest)

    async def measure(self) -> tuple[tuple[int, int, float], tuple[int, float]]:
        """A sample of `ClusterTimes.prompts`, of a chunk, and one of `decode`, of N rows."""
        probe = self._probe
        decode = await probe.decode(SHORT, probe.rows)
        kv, seconds = zip(*decode, strict=True)
        return await probe.prompts(probe.chunk), (round(median(kv)), median(seconds))


class _Probe:
    def __init__(self, client: AsyncClient, infos: Sequence[InstanceInfo], longest: int) -> None:
        info = infos[0]
        self._client = client
        self._info = info
        self._is_packed = info.settings.get("prefill_mode") in ("packed", '"packed"')
        self._is_apart = any(one.role is Role.DECODE for one in infos)
        self._prefills = sum(one.role is not Role.DECODE for one in infos)
        self.rows = info.slots * sum(one.role is not Role.PREFILL for one in infos)
        pool = min(one.blocks for one in infos) * info.block_tokens
        room = pool // info.slots - 2 * info.block_tokens
        self._pool = pool * (self.rows // info.slots) - 2 * info.block_tokens * self.rows
        self._longest = min(longest, info.max_model_tokens - ANSWER, room - ANSWER)
        self.chunk = min(info.prefill_tokens, self._longest)
        self._drawn = 0
        self._chunk_s = self._step_s = self._foreign_cores = 0.0
        if self._longest < 1:
            raise ConfigError(
                f"the KV pool of {pool} tokens does not hold {info.slots} rows of {ANSWER} tokens"
            )

    async def measure(self) -> ClusterTimes:
        await self.decode(SHORT, self.rows)  # the first of everything is slow
        await self._transfers(SHORT)
        lengths = [length for length in (SHORT << n for n in range(14)) if length < self._longest]
        # Short prompts are many to a step of packed prefill, which costs the same whatever it holds.
        least = self._info.prefill_tokens // 2 if self._is_packed else 1
        wide = [length for length in [*lengths, self._longest] if length >= least] or [self._longest]
        prompts = [await self._quiet(self.prompts, length) for length in wide]
        self._chunk_s = max(seconds / max(1, n // self._info.prefill_tokens) for n, _, seconds in prompts)
        one_row = await self._quiet(self.decode, SHORT, 1)
        self._step_s = min(seconds for _, seconds in one_row)
        levels = sorted({max(SHORT, self._longest * at // (2 * KV_LEVELS - 2)) for at in range(KV_LEVELS)})
        decode = [await self._quiet(self.decode, length, self.rows) for length in levels]
        times = ClusterTimes(
            prompts,
            list(chain.from_iterable(decode)),
            one_row,
            await self._quiet(self.refusals),
            SHORT,
            await self._quiet(self.first_tokens),
        )
        if self._is_apart:
            transfers = [await self._quiet(self._transfers, length) for length in [*lengths, self._longest]]
            prefill, decoded = await self._quiet(self._beside)
            times = replace(
                times,
                transfers=list(chain.from_iterable(transfers)),
                beside_prefill=prefill,
                beside_decode=decoded,
            )
        return replace(times, foreign_cores=self._foreign_cores)

    async def _quiet(self, measure: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        found, cores = await quietly(lambda: measure(*arguments, **named))
        self._foreign_cores = max(self._foreign_cores, cores)
        return found

    async def first_tokens(self) -> list[float]:
        """Of short prompts, one at a time."""
        return [(await self._all(self._requests(SHORT, 1, output=1)))[0].ttft_s for _ in range(3 * PULLS)]

    async def refusals(self) -> float:
        """Seconds a request, of many that come at once and that the router refuses."""
        requests = self._requests(SHORT, REFUSALS, output=self._info.max_model_tokens + 1)
        start_s = time.perf_counter()
        errors = await asyncio.gather(*(ask(self._client, one) for one in requests), return_exceptions=True)
        if not all(isinstance(error, InvalidRequest) for error in errors):
            raise ConfigError(f"requests above the model's limit were not refused: {errors[0]!r}")
        return (time.perf_counter() - start_s) / REFUSALS

    def _requests(self, length: int, count: int, output: int) -> list[EngineRequest]:
        self._drawn += 1
        return make_engine_requests([(length, output)] * count, self._info.vocabulary, seed=self._drawn)

    async def _all(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        found = await asyncio.gather(*(ask(self._client, request) for request in requests))
        return [answer for one in found for answer in one]

    async def prompts(self, length: int) -> tuple[int, int, float]:
        """Prompts of one length in a row, behind one that lets them all come meanwhile."""
        chunk = self._info.prefill_tokens
        together = max(1, min(chunk // length, self._info.slots)) if self._is_packed else 1
        count = PREFILL_STEPS * together * self._prefills
        blockers = self._requests(min(chunk, self._longest), self._prefills, output=1)
        answers = await self._all([*blockers, *self._requests(length, count, output=1)])
        start_s = max(answer.token_s[0] for answer in answers[: self._prefills])
        end_s = max(answer.token_s[0] for answer in answers)
        return (length, together, (end_s - start_s) / PREFILL_STEPS)

    async def decode(self, length: int, rows: int) -> list[tuple[int, float]]:
        """Steps of `rows` sequences at once, from prompts of `length` tokens on.

        The first to come goes on until the last has come, and then all go on for a while.
        """
        chunks = -(-length * rows // (self._info.prefill_tokens * self._prefills))
        joining = round(1.5 * chunks * self._chunk_s / self._step_s) if self._step_s else 0
        output = min(ANSWER + joining, self._info.max_model_tokens - length, self._pool // rows - length)
        answers = await self._all(self._requests(length, rows, output=max(2, output)))
        start_s = max(answer.token_s[1] for answer in answers)
        end_s = min(answer.token_s[-1] for answer in answers)
        return self._steps(answers, length, start_s, end_s)

    def _steps(
        self, answers: Sequence[Answer], length: int, start_s: float, end_s: float
    ) -> list[tuple[int, float]]:
        """Samples between two times: WINDOW gaps of the first row, and what a step of N rows reads then."""
        times = answers[0].token_s
        ends = times[bisect_left(times, start_s) : bisect_right(times, end_s)]
        samples = []
        for first, last in zip(ends[::WINDOW], ends[WINDOW::WINDOW], strict=False):
            middle_s = (first + last) / 2
            tokens = [bisect_right(answer.token_s, middle_s) for answer in answers]
            instances = max(1, len(answers) // self._info.slots)
            read = sum(length + count for count in tokens) // instances
            samples.append((read, (last - first) / WINDOW))
        return samples

    async def _transfers(self, length: int) -> list[tuple[int, float, int]]:
        """Pulls, one at a time: from a first token to the second."""
        found = []
        for request in self._requests(length, PULLS, output=2):
            (answer,) = await ask(self._client, request)
            size = length * self._info.block_bytes // self._info.block_tokens
            found.append((size, answer.token_s[1] - answer.token_s[0], length + 1))
        return found

    async def _beside(self) -> tuple[list[tuple[int, int, float]], list[tuple[int, float]]]:
        """Prompts of a chunk in a row while all rows decode. The first of them let the rows join."""
        chunk, length = min(self._info.prefill_tokens, self._longest), SHORT
        blockers = BLOCKERS * self._prefills
        rows = self._requests(length, self.rows, output=min(BESIDE_ANSWER, self._longest))
        prompts = self._requests(chunk, blockers + BESIDE_STEPS * self._prefills, output=1)
        answers = await self._all([*rows, *prompts])
        decoded, computed = answers[: self.rows], answers[self.rows :]
        start_s = max(answer.token_s[0] for answer in computed[:blockers])
        end_s = max(answer.token_s[0] for answer in computed)
        if start_s < max(a.token_s[1] for a in decoded) or end_s > min(a.token_s[-1] for a in decoded):
            raise ConfigError("rows did not decode for as long as prompts were computed beside them")
        prefill = [(chunk, 1, (end_s - start_s) / BESIDE_STEPS)]
        return prefill, self._steps(decoded, length, start_s, end_s)
