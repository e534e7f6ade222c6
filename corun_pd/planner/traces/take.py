"""So many requests of a trace, and never a silent resample."""

from collections.abc import Iterator

from corun_pd.errors import SetupError
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["take"]


def take(trace: Trace, count: int, *, repeat: bool = False) -> Iterator[TraceRequest]:
    """The first `count` requests.

    Raises SetupError where the trace ends before; with `repeat` it starts over instead, each pass a mean
    gap after the last arrival of the one before.
    """
    left, offset_s = count, 0.0
    while left > 0:
        for request in trace:
            yield (
                request
                if request.arrival_s is None
                else request._replace(arrival_s=offset_s + request.arrival_s)
            )
            left -= 1
            if not left:
                return
        report = trace.report
        if not repeat:
            raise SetupError(
                f"{trace.source}: {count} requests asked for and {report.requests} there; "
                "ask for fewer, or for repetition"
            )
        if report.last_arrival_s is not None:
            offset_s += report.last_arrival_s + report.last_arrival_s / max(report.requests - 1, 1)
