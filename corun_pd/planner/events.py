"""The event loop: a heap of times, where each event returns the next ones."""

import heapq
import math
from collections.abc import Callable, Iterable
from itertools import count

__all__ = ["Action", "Event", "run_events"]

#: Called with its time; gives the events that follow from it.
Action = Callable[[float], "Iterable[Event]"]
Event = tuple[float, Action]


def run_events(first: Iterable[Event], until_s: float = math.inf) -> None:
    """Runs until nothing follows or `until_s` is passed, in order of time, equal times in order of making."""
    order = count()
    heap = [(at_s, next(order), action) for at_s, action in first]
    heapq.heapify(heap)
    while heap:
        at_s, _, action = heapq.heappop(heap)
        if at_s > until_s:
            return
        for then_s, following in action(at_s):
            heapq.heappush(heap, (then_s, next(order), following))
