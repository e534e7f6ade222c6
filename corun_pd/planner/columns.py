"""A workload in memory, in a few bytes a request, for what goes over it many times."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, Self

from corun_pd.planner.traces import TraceRequest

__all__ = ["Columns"]

#: Stands for no group.
_ALONE: Final = -1


class Columns:
    """What the planner takes of requests, without their prefixes; iterating gives them anew."""

    def __init__(self) -> None:
        self._arrivals_s = array("d")
        self._prompts = array("q")
        self._outputs = array("q")
        self._groups = array("q")
        self._has_times = True

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> Self:
        """Reads them once."""
        found = cls()
        for arrival_s, prompt, output, _, group in requests:
            if arrival_s is None:
                found._has_times = False
            else:
                found._arrivals_s.append(arrival_s)
            found._prompts.append(prompt)
            found._outputs.append(output)
            found._groups.append(_ALONE if group is None else group)
        return found

    @property
    def arrival_span_s(self) -> float:
        """From the first arrival to the last; 0 of a workload without times."""
        if not self._has_times or not self._arrivals_s:
            return 0.0
        return max(self._arrivals_s) - min(self._arrivals_s)

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[TraceRequest]:
        times = self._arrivals_s if self._has_times else [None] * len(self)
        columns = zip(times, self._prompts, self._outputs, self._groups, strict=True)
        for arrival_s, prompt, output, group in columns:
            yield TraceRequest(arrival_s, prompt, output, None, None if group == _ALONE else group)
