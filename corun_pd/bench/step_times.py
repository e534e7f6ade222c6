"""What the steps of an engine take on this machine: what a cost profile is made of.

A prefill and a decode engine run beside each other, each a process, and do their work one after the other.
Prompts of one length are computed in a row, so that what is found is what an engine with a queue needs for
each; their KV caches are pulled, and rows decode N at a time. Times are in seconds.
"""

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from corun_pd.bench.process import EngineProcess, Job, Record, Run
from corun_pd.bench.workloads import EngineRequest, make_engine_requests
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import ConfigError, EngineFailed

__all__ = ["Places", "StepTimes", "measure_steps"]

#: Steps of one kind that are measured, and how many decode steps make one sample.
PREFILL_STEPS, DECODE_STEPS, WINDOW = 6, 33, 8
#: Lengths of prompts beside N rows, for steps that read less or more KV cache.
KV_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Places:
    """Where the prefill and the decode engine run: CPU cores, and environment variables (a GPU, say)."""

    cores: tuple[int | None, int | None] = (None, None)
    environments: tuple[dict[str, str], dict[str, str]] = ({}, {})


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What was measured, of engines that are `info`.

    `prompts` are (tokens of a prompt, prompts in a step, seconds for all that is in it); a prompt above a
    chunk takes several steps. `decode` are (KV tokens that a step of N rows reads, seconds), `transfers`
    (bytes, seconds from a decode leg's start to its first token, KV tokens of its step).
    """

    info: EngineInfo
    kv_bytes_per_token: int
    prompts: Sequence[tuple[int, int, float]]
    decode: Sequence[tuple[int, float]]
    transfers: Sequence[tuple[int, float, int]]
    start_up_s: float


def measure_steps(
    model: Path,
    config: EngineConfig,
    lengths: Sequence[int],
    logs: Path,
    places: Places | None = None,
) -> StepTimes:
    """Starts a pair of engines and measures. `lengths` are of prompts, in tokens.

    Raises ConfigError when the KV pool does not hold N prompts of the shortest length, EngineFailed when
    an engine fails.
    """
    places = places or Places()
    with (
        _started(model, Role.PREFILL, config, logs, places) as (prefill, info, first_s),
        _started(model, Role.DECODE, config, logs, places) as (decode, decode_info, second_s),
    ):
        pair = _Pair(prefill, decode, info, min(info.blocks, decode_info.blocks) * info.block_tokens)
        pair.check(max(lengths))
        pair.warm_up()
        prompts: list[tuple[int, int, float]] = []
        transfers: list[tuple[int, float, int]] = []
        for length in sorted(lengths):
            seconds, moved = pair.prompts(length)
            prompts.append(seconds)
            transfers += moved
        steps = [sample for length in pair.levels(max(lengths)) for sample in pair.decode_steps(length)]
        return StepTimes(
            decode_info,
            info.block_bytes // info.block_tokens,
            prompts,
            steps,
            transfers,
            max(first_s, second_s),
        )


class _Pair:
    """The two engines; every KV cache that is handed off is pulled, so that pools are empty in between."""

    def __init__(self, prefill: EngineProcess, decode: EngineProcess, info: EngineInfo, pool: int) -> None:
        self._prefill, self._decode = prefill, decode
        self._info = info
        self._pool = pool

    def check(self, longest: int) -> None:
        """Raises ConfigError for a pool too small to measure with: a prompt would wait for room for ever."""
        block = self._info.block_tokens
        for what, tokens in (
            (f"two prompts of {longest} tokens", 2 * (longest + 2 * block)),
            (
                f"{self._info.slots} rows of {self._answer} tokens",
                self._info.slots * (self._answer + 2 * block),
            ),
        ):
            if tokens > self._pool:
                raise ConfigError(f"the KV pool of {self._pool} tokens does not hold {what}")

    def warm_up(self) -> None:
        """The first of everything is slow: kernels, and the handshake of the two."""
        for length in (16, self._info.prefill_tokens):
            requests = self._requests(min(length, self._pool // 4), 2, output=4)
            self._pull(requests, self._compute(requests).records)

    def prompts(self, length: int) -> tuple[tuple[int, int, float], list[tuple[int, float, int]]]:
        """Prompts of one length in a row; then the transfers of a few, one at a time."""
        info = self._info
        is_packed = info.contract.settings["prefill_mode"] == "packed"
        together = max(1, min(info.prefill_tokens // length, info.slots)) if is_packed else 1
        count = min((PREFILL_STEPS + 1) * together, self._pool // (length + 2 * info.block_tokens))
        requests = self._requests(length, count, output=2)
        records = self._compute(requests).records
        ends = sorted({record.first_s for record in records})
        if len(ends) < 2:
            raise ConfigError(f"the KV pool of {self._pool} tokens does not hold prompts to fill two steps")
        seconds = fmean(end - start for start, end in pairwise(ends))
        alone = self._pull(requests[:PREFILL_STEPS], records[:PREFILL_STEPS], concurrency=1)
        self._pull(requests[PREFILL_STEPS:], records[PREFILL_STEPS:])
        size = length * info.block_bytes // info.block_tokens
        moved = [(size, record.first_s - record.submitted_s, length + 1) for record in alone.records]
        return (length, together, seconds), moved

    def levels(self, longest: int) -> list[int]:
        """Lengths such that the pool holds N prompts with their answers."""
        room = self._pool // self._info.slots - self._answer - 2 * self._info.block_tokens
        most = max(1, min(longest, room))
        return sorted({max(1, most * level // (KV_LEVELS - 1)) for level in range(KV_LEVELS)})

    def decode_steps(self, length: int) -> list[tuple[int, float]]:
        """Steps in which all N rows hold a sequence, from prompts of `length` tokens on."""
        slots = self._info.slots
        requests = self._requests(length, slots, output=self._answer)
        run = self._pull(requests, self._compute(requests).records)
        steps = _steps(run, length)
        # Fewer rows will do when the first ended before the last came: a step of a fixed shape takes as long.
        windows = _windows(steps, slots) or _windows(steps, max(1, slots // 2))
        if not windows:
            raise EngineFailed(f"{len(steps)} steps never had half of {slots} rows for long enough")
        return [
            (round(fmean(kv for _, kv in window[1:])), (window[-1][0] - window[0][0]) / WINDOW)
            for window in windows
        ]

    @property
    def _answer(self) -> int:
        """Tokens of each row: rows join one after the other, and then all of them go on for a while."""
        return DECODE_STEPS + self._info.slots

    def _requests(self, length: int, count: int, output: int) -> list[EngineRequest]:
        return make_engine_requests([(length, output)] * count, self._info.vocabulary, seed=length)

    def _compute(self, requests: Sequence[EngineRequest]) -> Run:
        return self._prefill.run(Job(requests, hand_off=True))

    def _pull(
        self, requests: Sequence[EngineRequest], firsts: Sequence[Record], concurrency: int | None = None
    ) -> Run:
        return self._decode.run(Job(requests, concurrency, resume=firsts))


def _steps(run: Run, length: int) -> list[tuple[float, int, int]]:
    """Every step as (its end in seconds, its rows, the KV tokens that it reads), from prompts of `length`."""
    ends = sorted({end_s for end_s, tokens in run.timeline if tokens})
    rows, reads = [0] * len(ends), [0] * len(ends)
    for record in run.records:
        first = bisect_left(ends, record.first_s)
        for at in range(first, bisect_right(ends, record.last_s)):
            rows[at] += 1
            reads[at] += length + 1 + at - first  # a row has its first token from the prefill engine
    return list(zip(ends, rows, reads, strict=True))


def _windows(steps: Sequence[tuple[float, int, int]], least_rows: int) -> list[Sequence[tuple[float, int]]]:
    """Runs of WINDOW steps and the one before them, of `least_rows` rows or more."""
    full = [(end_s, read) for end_s, rows, read in steps if rows >= least_rows]
    return [full[at : at + WINDOW + 1] for at in range(1, len(full) - WINDOW, WINDOW)]


@contextmanager
def _started(
    model: Path, role: Role, config: EngineConfig, logs: Path, places: Places
) -> Iterator[tuple[EngineProcess, EngineInfo, float]]:
    """The role's engine, what it is, and the seconds until it was ready.

    One starts after the other, since an engine that measures the memory of a GPU must be alone with it.
    """
    began = time.monotonic()
    at = 0 if role is Role.PREFILL else 1
    core, cores = places.cores[at], os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        engine = EngineProcess(model, role, config, logs / f"{role}.log", places.environments[at])
    except OSError as error:
        raise ConfigError(f"core {core} is not there: {error.strerror}") from error
    finally:
        os.sched_setaffinity(0, cores)  # a process has the cores of the one that starts it
    with engine:
        info = engine.ready()
        yield engine, info, time.monotonic() - began
