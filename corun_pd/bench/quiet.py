"""Measurements that others on the machine disturb are repeated: what else ran is part of a figure."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psutil

__all__ = ["foreign_cores", "quietly"]

#: Cores that others may use in the mean during a measurement, and how often it is tried.
MOST_CORES, TRIES = 0.05, 4
#: Before another try, in seconds.
_PAUSE_S: Final = 2.0

T = TypeVar("T")


async def quietly(measure: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """What `measure` gave, and the cores that others used meanwhile, of the try with the least of that.

    The first try that is quiet enough ends it.
    """
    best: tuple[T, float] | None = None
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        before = _busy_s(), _own_s(), time.perf_counter()
        found = await measure()
        cores = foreign_cores(before, (_busy_s(), _own_s(), time.perf_counter()))
        if best is None or cores < best[1]:
            best = found, cores
        if cores <= MOST_CORES:
            break
    assert best is not None
    return best


def foreign_cores(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Cores that others used between two readings of (all CPU time, our own, the clock), in seconds."""
    busy_s, own_s, wall_s = (end - start for start, end in zip(before, after, strict=True))
    return max(0.0, busy_s - own_s) / wall_s if wall_s > 0 else 0.0


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def _own_s() -> float:
    """Of this process and of those that it started; one that ends meanwhile is left out."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
