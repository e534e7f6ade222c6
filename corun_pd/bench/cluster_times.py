"""What steps take in a running cluster, by when its clients have their tokens.

A cost profile of these is of the cluster as it stands: its pinning, what runs beside each engine, and what
streaming costs are in it. Times are in seconds.
"""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from corun_pd.bench.workloads import EngineRequest, make_engine_requests
from corun_pd.client import AsyncClient
from corun_pd.core import InstanceInfo, Role
from corun_pd.errors import ConfigError

__all__ = ["Answer", "ClusterTimes", "ask", "measure_cluster"]

#: Prefill steps of one kind that are measured, tokens of a row, and decode steps of a sample.
PREFILL_STEPS, ANSWER, WINDOW = 8, 48, 8
#: Lengths of prompts beside N rows, and pulls of each length.
KV_LEVELS, PULLS = 4, 3
#: Of rows beside prompts: their tokens, the prompts until all have joined, and those that are measured.
BESIDE_ANSWER, BLOCKERS, BESIDE_STEPS = 192, 4, 12


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
    of its step). `beside_prefill` and `beside_decode` are of steps while another instance takes the others.
    """

    prompts: Sequence[tuple[int, int, float]]
    decode: Sequence[tuple[int, float]]
    transfers: Sequence[tuple[int, float, int]] = ()
    beside_prefill: Sequence[tuple[int, int, float]] = ()
    beside_decode: Sequence[tuple[int, float]] = ()


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


class _Probe:
    def __init__(self, client: AsyncClient, infos: Sequence[InstanceInfo], longest: int) -> None:
        info = infos[0]
        self._client = client
        self._info = info
        self._is_packed = info.settings.get("prefill_mode") in ("packed", '"packed"')
        self._is_apart = any(one.role is Role.DECODE for one in infos)
        self._prefills = sum(one.role is not Role.DECODE for one in infos)
        self._rows = info.slots * sum(one.role is not Role.PREFILL for one in infos)
        pool = min(one.blocks for one in infos) * info.block_tokens
        room = pool // info.slots - 2 * info.block_tokens
        self._longest = min(longest, info.max_model_tokens - ANSWER, room - ANSWER)
        self._drawn = 0
        if self._longest < 1:
            raise ConfigError(
                f"the KV pool of {pool} tokens does not hold {info.slots} rows of {ANSWER} tokens"
            )

    async def measure(self) -> ClusterTimes:
        await self._decode(16)  # the first of everything is slow
        await self._transfers(16)
        lengths = [length for length in (16 << n for n in range(14)) if length < self._longest]
        prompts = [await self._prompts(length) for length in [*lengths, self._longest]]
        levels = sorted({max(1, self._longest * at // (KV_LEVELS - 1)) for at in range(KV_LEVELS)})
        decode = [sample for length in levels for sample in await self._decode(length)]
        if not self._is_apart:
            return ClusterTimes(prompts, decode)
        transfers = [one for length in [*lengths, self._longest] for one in await self._transfers(length)]
        return ClusterTimes(prompts, decode, transfers, *await self._beside())

    def _requests(self, length: int, count: int, output: int) -> list[EngineRequest]:
        self._drawn += 1
        return make_engine_requests([(length, output)] * count, self._info.vocabulary, seed=self._drawn)

    async def _all(self, requests: Sequence[EngineRequest]) -> list[Answer]:
        found = await asyncio.gather(*(ask(self._client, request) for request in requests))
        return [answer for one in found for answer in one]

    async def _prompts(self, length: int) -> tuple[int, int, float]:
        """Prompts of one length in a row, behind one that lets them all come meanwhile."""
        chunk = self._info.prefill_tokens
        together = max(1, min(chunk // length, self._info.slots)) if self._is_packed else 1
        count = PREFILL_STEPS * together * self._prefills
        blockers = self._requests(min(chunk, self._longest), self._prefills, output=1)
        answers = await self._all([*blockers, *self._requests(length, count, output=1)])
        start_s = max(answer.token_s[0] for answer in answers[: self._prefills])
        end_s = max(answer.token_s[0] for answer in answers)
        return (length, together, (end_s - start_s) / PREFILL_STEPS)

    async def _decode(self, length: int) -> list[tuple[int, float]]:
        """Steps in which every row holds a sequence, from prompts of `length` tokens on."""
        answers = await self._all(self._requests(length, self._rows, output=ANSWER))
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
            read = sum(length + count for count in tokens) * self._info.slots // len(answers)
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
        chunk, length = min(self._info.prefill_tokens, self._longest), 16
        blockers = BLOCKERS * self._prefills
        rows = self._requests(length, self._rows, output=min(BESIDE_ANSWER, self._longest))
        prompts = self._requests(chunk, blockers + BESIDE_STEPS * self._prefills, output=1)
        answers = await self._all([*rows, *prompts])
        decoded, computed = answers[: self._rows], answers[self._rows :]
        start_s = max(answer.token_s[0] for answer in computed[:blockers])
        end_s = max(answer.token_s[0] for answer in computed)
        if start_s < max(a.token_s[1] for a in decoded) or end_s > min(a.token_s[-1] for a in decoded):
            raise ConfigError("rows did not decode for as long as prompts were computed beside them")
        prefill = [(chunk, 1, (end_s - start_s) / BESIDE_STEPS)]
        return prefill, self._steps(decoded, length, start_s, end_s)
