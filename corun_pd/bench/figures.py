"""What a run says in numbers. Pure; times are in seconds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from corun_pd.bench.records import Run

__all__ = ["DecodeSteps", "aggregate", "decode_steps", "latencies", "padding", "rates", "timeline"]

#: Points of a distribution: every second percentile, the ends included.
POINTS = 51

#: A decode step counts as full from this share of the widest one's rows on.
FULL = 0.95


def rates(run: Run, prompt_tokens: int) -> dict[str, float]:
    """Tokens a second of the whole run, both ways, and how long it took."""
    return {
        "output_tokens_per_s": run.tokens_per_s,
        "total_tokens_per_s": (run.output_tokens + prompt_tokens) / run.wall_s,
        "wall_s": run.wall_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": run.output_tokens,
        "requests": len(run.records),
        "steps": run.load_after.steps - run.load_before.steps,
    }


def latencies(run: Run) -> dict[str, object]:
    """TTFT and TPOT: mean, some percentiles, and the whole distributions in `POINTS` points."""
    ttft = sorted(r.first_s - r.submitted_s for r in run.records)
    tpot = sorted(
        (r.last_s - r.first_s) / (len(r.token_ids) - 1) for r in run.records if len(r.token_ids) > 1
    )
    found: dict[str, object] = {}
    for name, values in (("ttft", ttft), ("tpot", tpot or [0.0])):
        found |= {
            f"{name}_mean_s": statistics.fmean(values),
            f"{name}_p50_s": _at(values, 0.5),
            f"{name}_p95_s": _at(values, 0.95),
            f"{name}_p99_s": _at(values, 0.99),
            f"{name}_s": [_at(values, point / (POINTS - 1)) for point in range(POINTS)],
        }
    return found


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps of decode rows alone that followed each other: how many, their median rows and seconds."""

    count: int
    rows: int
    step_s: float


def decode_steps(run: Run) -> DecodeSteps | None:
    """The fullest decode steps of a run; None when no two follow each other.

    A step's time is from the step before, which must be of decode rows alone as well.
    """
    steps = list(zip(run.timeline, run.firsts, strict=True))
    pure = [
        (end - start, rows)
        for ((start, _), before), ((end, rows), firsts) in pairwise(steps)
        if not before and not firsts
    ]
    widest = max((rows for _, rows in pure), default=0)
    full = [(seconds, rows) for seconds, rows in pure if rows >= FULL * widest]
    if not full:
        return None
    return DecodeSteps(
        len(full), round(statistics.median(r for _, r in full)), statistics.median(s for s, _ in full)
    )


def padding(run: Run, slots: int, *, is_fixed: bool) -> dict[str, float]:
    """Shares of padded rows: of all rows, of decode rows, and of prefill rows.

    Under fixed-shape decode (`is_fixed`) every decode step has N rows. What vLLM's own scheduling pads to
    the sizes of its graphs is not counted by its scheduler, and is zero here.
    """
    before, after = run.load_before, run.load_after
    rows, padded = after.rows - before.rows, after.padding_rows - before.padding_rows
    decode = [tokens for (_, tokens), firsts in zip(run.timeline, run.firsts, strict=True) if not firsts]
    decode_rows = len(decode) * slots if is_fixed else sum(decode)
    decode_padded = min(decode_rows - sum(decode), padded)
    prefill_rows = rows - decode_rows
    return {
        "padding_ratio": padded / rows if rows else 0.0,
        "decode_padding_ratio": decode_padded / decode_rows if decode_rows else 0.0,
        "prefill_padding_ratio": (padded - decode_padded) / prefill_rows if prefill_rows > 0 else 0.0,
        "decode_steps": len(decode),
        "rows": rows,
        "padding_rows": padded,
    }


def timeline(run: Run, prompts: Sequence[int], bins: int = 100) -> dict[str, object]:
    """Prefill and decode tokens a second and requests under way, in `bins` equal parts of the run.

    A prompt counts where its first token came.
    """
    width = run.wall_s / bins
    prefill, decode, running = [0.0] * bins, [0.0] * bins, [0.0] * bins
    for record, prompt in zip(run.records, prompts, strict=True):
        prefill[_bin(record.first_s, width, bins)] += prompt / width
        for at in range(_bin(record.first_s, width, bins), _bin(record.last_s, width, bins) + 1):
            running[at] += (
                max(0.0, min(record.last_s, (at + 1) * width) - max(record.first_s, at * width)) / width
            )
    for (at_s, tokens), firsts in zip(run.timeline, run.firsts, strict=True):
        decode[_bin(at_s, width, bins)] += (tokens - firsts) / width
    return {
        "bin_s": width,
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": decode,
        "running": running,
        "prefill_done_s": max(record.first_s for record in run.records),
        "done_s": max(record.last_s for record in run.records),
    }


def aggregate(rows: Sequence[tuple[float, float]]) -> float:
    """The paper's time-weighted throughput of (tokens a second, seconds): all tokens over all time."""
    return sum(rate * seconds for rate, seconds in rows) / sum(seconds for _, seconds in rows)


def _bin(at_s: float, width: float, bins: int) -> int:
    return min(bins - 1, max(0, int(at_s / width)))


def _at(values: Sequence[float], share: float) -> float:
    """The value that `share` of the sorted ones do not exceed."""
    return values[min(len(values) - 1, round(share * (len(values) - 1)))]
