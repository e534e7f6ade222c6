"""What moving a KV cache costs: a prefill and a decode engine on the same device or on two.

Each handoff is pulled by a decode engine without other work, then by one whose rows decode meanwhile. A
pull's time is from the decode leg's start to its first token, less the decode step that gave this token;
it holds the engine's scheduling and the pull's notification as well as the copy. Times are in seconds.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from corun_pd.bench.process import EngineProcess
from corun_pd.bench.records import Job, Record, Run
from corun_pd.bench.workloads import EngineRequest, make_engine_requests
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import ConfigError

__all__ = ["measure_transfer"]

Row = dict[str, object]

#: Output tokens of each pulled request, and how often each length is pulled.
OUTPUT, REPEATS = 24, 4
#: Rows that decode while KV caches are pulled, their prompts, and how many steps they take.
ROWS, ROW_PROMPT, ROW_STEPS = 64, 256, 300


def measure_transfer(
    model: Path,
    config: EngineConfig,
    lengths: Sequence[int],
    logs: Path,
    add: Callable[[Row, EngineInfo], None],
    devices: tuple[dict[str, str], dict[str, str]] = ({}, {}),
) -> None:
    """A row for each prompt length, in tokens; `add` gets it, and what the decode engine is, as it comes.

    `devices` are environment variables of the two processes. Raises ConfigError for a prompt that the model
    or its KV pool does not hold, EngineFailed when an engine fails.
    """
    for length in lengths:
        limit = config.max_model_tokens
        if limit is not None and length + OUTPUT > limit:
            raise ConfigError(f"a prompt of {length} tokens and {OUTPUT} more are above the limit of {limit}")
    with (
        EngineProcess(model, Role.PREFILL, config, logs / "transfer-prefill.log", devices[0]) as prefill,
        EngineProcess(model, Role.DECODE, config, logs / "transfer-decode.log", devices[1]) as decode,
    ):
        info, other = prefill.ready(), decode.ready()
        pool = min(info.blocks, other.blocks) * info.block_tokens
        for length in lengths:
            if length + OUTPUT > min(info.max_model_tokens, pool):
                raise ConfigError(f"a prompt of {length} tokens does not fit the model or its KV pool")
        pair = _Pair(prefill, decode, info, pool)
        pair.alone(16)  # the first pull makes the connection
        for length in lengths:
            add(pair.alone(length) | pair.beside(length), other)


class _Pair:
    def __init__(self, prefill: EngineProcess, decode: EngineProcess, info: EngineInfo, pool: int) -> None:
        self._prefill, self._decode = prefill, decode
        self._info, self._pool = info, pool

    def alone(self, length: int) -> Row:
        """Pulls one KV cache at a time; nothing else runs."""
        pulls, prefills, steps, bytes_moved = [], [], [], 0
        for repeat in range(REPEATS):
            requests = self._requests(length, 1, OUTPUT, repeat)
            first = self._prefill.run(Job(requests, hand_off=True)).records
            run = self._decode.run(Job(requests, resume=first))
            step = statistics.median(_steps(run))
            prefills.append(first[0].first_s - first[0].submitted_s)
            pulls.append(_first_token_s(run.records[0]) - step)
            steps.append(step)
            bytes_moved = run.load_after.kv_pulled_bytes - run.load_before.kv_pulled_bytes
        pull_s = statistics.median(pulls)
        return {
            "prompt_tokens": length,
            "kv_bytes": bytes_moved,
            "prefill_s": statistics.median(prefills),
            "pull_s": pull_s,
            "pull_least_s": min(pulls),
            "bytes_per_s": bytes_moved / pull_s if pull_s > 0 else None,
            "to_first_decode_token_s": pull_s + statistics.median(steps),
            "decode_step_s": statistics.median(steps),
        }

    def beside(self, length: int) -> Row:
        """Pulls KV caches while `ROWS` rows decode: how much longer do their steps take?

        The hidden share is what is left of the pulls' time when the time that the rows lost is taken off.
        """
        rows = min(ROWS, self._info.slots // 2)
        room = self._pool - rows * (ROW_PROMPT + ROW_STEPS + self._info.block_tokens)
        count = min(REPEATS, room // (length + OUTPUT + self._info.block_tokens), self._info.slots - rows)
        if rows < 1 or count < 1 or self._info.max_model_tokens < ROW_PROMPT + ROW_STEPS:
            return {"beside_rows": 0}
        busy = self._requests(ROW_PROMPT, rows, ROW_STEPS, 100)
        plain = self._decode.run(Job(busy, resume=self._compute(busy)))
        step = statistics.median(_steps(plain))
        pulled = self._requests(length, count, OUTPUT, 200)
        both = [*busy, *pulled]
        # The rows start first; then a KV cache comes every few steps, when theirs has settled.
        begin_s, every_s = plain.wall_s / 4, max(plain.wall_s / 4 / count, 2 * step)
        arrivals = [0.0] * rows + [begin_s + every_s * at for at in range(count)]
        run = self._decode.run(Job(both, resume=self._compute(both), arrivals_s=arrivals))
        waits = [_first_token_s(record) - step for record in run.records[rows:]]
        loss = self._lost_s(run, rows, step)
        waited = sum(max(wait, 0.0) for wait in waits)
        return {
            "beside_rows": rows,
            "beside_pulls": count,
            "beside_step_s": step,
            "beside_pull_s": statistics.median(waits),
            "beside_lost_s": loss,
            "hidden_ratio": max(0.0, 1 - loss / waited) if waited > 0 else None,
        }

    def _lost_s(self, run: Run, rows: int, step: float) -> float:
        """Time that steps took beyond `step` while a KV cache was on its way."""
        windows = [(r.submitted_s, r.first_s) for r in run.records[rows:]]
        lost = 0.0
        for (start, _), (end, _) in pairwise(run.timeline):
            if any(start < last and end > first for first, last in windows):
                lost += max(0.0, end - start - step)
        return lost

    def _compute(self, requests: Sequence[EngineRequest]) -> Sequence[Record]:
        return self._prefill.run(Job(requests, hand_off=True)).records

    def _requests(self, length: int, count: int, output: int, seed: int) -> list[EngineRequest]:
        return make_engine_requests([(length, output)] * count, self._info.vocabulary, seed=seed)


def _first_token_s(record: Record) -> float:
    return record.first_s - record.submitted_s


def _steps(run: Run) -> list[float]:
    """Seconds of the steps after the first few."""
    ends = [end for end, tokens in run.timeline if tokens]
    return [end - start for start, end in pairwise(ends[2:])]
