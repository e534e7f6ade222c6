"""A trace: requests in order of arrival, read one at a time, as often as wanted."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from corun_pd.errors import SetupError
from corun_pd.planner.traces.report import TraceReport
from corun_pd.planner.traces.request import TraceRequest

__all__ = ["Trace"]


class Trace(ABC):
    """Each iteration is a pass from the start; `report` is that of the last one.

    `source` says where the requests come from and `unit` in which units, in words. Raises SetupError,
    naming the source, when it cannot be read or gives no request at all.
    """

    def __init__(self, source: str, unit: str) -> None:
        self.source = source
        self.unit = unit
        self.report = TraceReport(source, unit)

    def __iter__(self) -> Iterator[TraceRequest]:
        self.report = report = TraceReport(self.source, self.unit)
        yield from self._read(report)
        if not report.kept:
            raise SetupError("no usable request in " + "\n".join(report.lines()))

    @abstractmethod
    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        """The requests; every row is told to `report` before its requests are given."""
