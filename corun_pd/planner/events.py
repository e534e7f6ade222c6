"""The event loop: a heap of times, where each event returns the next ones."""

import heapq
from collections.abc import Callable, Iterable
from itertools import count

__all__ = ["Action", "Event", "run_events"]

#: Called with its time; gives the events that follow from it.
Action = Callable[[float], "Iterable[Event]"]
Event = tuple[float, Action]


def run_events(first: Iterable[Event]) -> float:
    """Runs until nothing follows, in order of time, equal times in order of making. Gives the last time."""
    order = count()
    heap = [(at_s, next(order), action) for at_s, action in first]
    heapq.heapify(heap)
    at_s = 0.0
    while heap:
        at_s, _, action = heapq.heappop(heap)
        for then_s, following in action(at_s):
            heapq.heappush(heap, (then_s, next(order), following))
    return at_s
