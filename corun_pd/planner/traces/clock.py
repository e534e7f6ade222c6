"""Time stamps to seconds from the first request."""

from corun_pd.planner.traces.report import Note, TraceReport

__all__ = ["Clock"]


class Clock:
    """Starts at zero with the first stamp and never goes back; `ticks_per_s` is the stamps' unit."""

    def __init__(self, report: TraceReport, ticks_per_s: int = 1) -> None:
        self._report = report
        self._ticks_per_s = ticks_per_s
        self._start: float | None = None
        self._last_s = 0.0

    def read(self, stamp: float) -> float:
        """The stamp in seconds. One that lies before the last is taken as equal to it, and noted."""
        if self._start is None:
            self._start = stamp
        at_s = (stamp - self._start) / self._ticks_per_s
        if at_s < self._last_s:
            self._report.notes[Note.BACKWARDS] += 1
            return self._last_s
        self._last_s = at_s
        return at_s
