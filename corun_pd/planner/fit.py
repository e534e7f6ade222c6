"""Cost models from measured steps, by least relative error, no coefficient below zero.

A machine that does something else for a moment makes a step long, so samples far off the rest count less:
the fit goes towards the least sum of absolute errors, not of squares. Times are in seconds. Each fit comes
with its largest relative error on what it was made from, the samples far off among them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, Literal

from corun_pd.errors import ConfigError
from corun_pd.planner.cost import DecodePoint, StepCost, TransferCost
from corun_pd.planner.prefill_cost import IsolatedCost, PackedCost

__all__ = ["MOST_BYTES_PER_S", "fit_decode", "fit_prefill", "fit_transfer", "rising", "with_rows"]

#: What a link carries at most: a slope that measurement cannot tell from none becomes this.
MOST_BYTES_PER_S: Final = 1e13

#: The least that a constant part is, as a share of the least measurement; a step takes some time.
LEAST_PART: Final = 1e-3

#: How often samples are weighed anew, and the relative error below which none weighs more.
ROUNDS: Final = 20
LEAST_ERROR: Final = 0.01


def fit_prefill(
    mode: Literal["isolated", "packed"], chunk_tokens: int, prompts: Sequence[tuple[int, int, float]]
) -> tuple[IsolatedCost | PackedCost, float]:
    """`prompts` are (tokens of a prompt, prompts in a step, seconds for these)."""
    if mode == "isolated":
        points: list[tuple[int, float]] = []
        for tokens, _, seconds in sorted(prompts):
            points.append((tokens, max(seconds, points[-1][1] if points else 0.0)))  # noise must not fall
        isolated = IsolatedCost(chunk_tokens=chunk_tokens, prompts=tuple(points))
        return isolated, _worst(isolated.curve, [(tokens, seconds) for tokens, _, seconds in prompts])
    one = PackedCost(chunk_tokens=chunk_tokens, full_step_s=1.0, context_pair_s=0.0)
    rows = [(one.alone_s(tokens), one.context_pairs(tokens), seconds) for tokens, _, seconds in prompts]
    full_step_s, context_pair_s = _fit([(steps, pairs, seconds) for steps, pairs, seconds in rows])
    packed = PackedCost(chunk_tokens=chunk_tokens, full_step_s=full_step_s, context_pair_s=context_pair_s)
    return packed, _worst(packed.alone_s, [(tokens, seconds) for tokens, _, seconds in prompts])


def fit_decode(slots: int, steps: Sequence[tuple[int, float]]) -> tuple[DecodePoint, float]:
    """`steps` are (KV tokens read, seconds) of steps of N = `slots` rows."""
    base_s, kv_token_s = _fit([(1.0, kv, seconds) for kv, seconds in steps])
    point = DecodePoint(slots=slots, base_s=base_s, kv_token_s=kv_token_s)
    return point, _worst(lambda kv: base_s + kv_token_s * kv, steps)


def rising(points: Iterable[DecodePoint]) -> tuple[DecodePoint, ...]:
    """Points in the order of N; one that noise makes faster than a narrower one takes as long as that."""
    found: list[DecodePoint] = []
    for point in points:
        least = found[-1].base_s if found else 0.0
        found.append(point.model_copy(update={"base_s": max(point.base_s, least)}))
    return tuple(found)


def with_rows(point: DecodePoint, one_row: Sequence[tuple[int, float]]) -> DecodePoint:
    """The point with its base parted into rows and the rest, by steps of one row: (KV tokens, seconds)."""
    others = point.slots - 1
    if not others or not one_row:
        return point
    alone_s = median(seconds - kv * point.kv_token_s for kv, seconds in one_row)
    row_s = min(max(0.0, (point.base_s - alone_s) / others), point.base_s / (2 * point.slots))
    return point.model_copy(update={"base_s": point.base_s - point.slots * row_s, "row_s": row_s})


def fit_transfer(transfers: Sequence[tuple[int, float, int]], step: StepCost) -> tuple[TransferCost, float]:
    """`transfers` are (bytes, seconds with the decode step that follows, KV tokens of that step)."""
    rows = [
        (size, max(seconds - step.base_s - step.kv_token_s * kv, LEAST_PART * seconds))
        for size, seconds, kv in transfers
    ]
    latency_s, byte_s = _fit([(1.0, size, seconds) for size, seconds in rows])
    cost = TransferCost(latency_s=latency_s, bytes_per_s=1 / max(byte_s, 1 / MOST_BYTES_PER_S))
    return cost, _worst(lambda size: latency_s + byte_s * size, rows)


def _fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(a, b) of a·x + b·z = y over rows of (x, z, y), by relative error; a is positive, b not negative."""
    if not rows or not all(0 < y < math.inf for _, _, y in rows):
        raise ConfigError("a cost cannot be fitted: nothing was measured, or it took no time")
    weights = [1.0] * len(rows)
    for _ in range(ROUNDS):
        a, b = _fit_squares(rows, weights)
        weights = [1 / max(abs((a * x + b * z) / y - 1), LEAST_ERROR) for x, z, y in rows]
    return a, b


def _fit_squares(rows: Sequence[tuple[float, float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """As `_fit`, by squares of the weighted relative error."""
    scaled = [(weight / y**2, x, z, y) for weight, (x, z, y) in zip(weights, rows, strict=True)]
    xx = sum(w * x * x for w, x, _, _ in scaled)
    xz = sum(w * x * z for w, x, z, _ in scaled)
    zz = sum(w * z * z for w, _, z, _ in scaled)
    xy = sum(w * x * y for w, x, _, y in scaled)
    zy = sum(w * z * y for w, _, z, y in scaled)
    determinant = xx * zz - xz * xz
    if determinant > 1e-9 * xx * zz:
        a, b = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
        least = LEAST_PART * min(y / x for x, _, y in rows)
        if b >= 0:
            return (a, b) if a >= least else (least, (zy - least * xz) / zz)
    return xy / xx, 0.0


def _worst(model: Callable[[int], float], points: Sequence[tuple[int, float]]) -> float:
    return max(abs(model(x) / seconds - 1) for x, seconds in points)
