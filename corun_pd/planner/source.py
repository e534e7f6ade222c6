"""The requests as they come to the simulated router, drawn from the trace no sooner than needed."""

from collections import deque
from collections.abc import Iterable

from corun_pd.core import Edge
from corun_pd.errors import ConfigError, SetupError
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.record import Record
from corun_pd.planner.traces import TraceRequest

__all__ = ["Source"]


class Source:
    """`queue` holds those that came and wait.

    `max_tokens` is what clients ask for; a longer answer asks for itself. What `layout` can never
    hold is refused when it comes.
    """

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        load: Load,
        max_tokens: int,
        record: Record,
        layout: Layout,
    ) -> None:
        self.queue: deque[Job] = deque()
        self._requests = iter(requests)
        self._load = load
        self._max_tokens = max_tokens
        self._record = record
        self._layout = layout
        self._drawn = 0
        self._next = next(self._requests, None)

    def next_arrival_s(self) -> float | None:
        """When requests come by themselves next; None: never."""
        if self._next is None or not isinstance(self._load, Online):
            return None
        if self._next.arrival_s is None:
            raise SetupError("the trace has no times; take it offline or in a closed loop")
        return self._next.arrival_s / self._load.speed

    def arrive(self, now_s: float) -> None:
        """Those whose time has come are in the queue."""
        while (arrival_s := self.next_arrival_s()) is not None and arrival_s <= now_s:
            self._draw(now_s)

    def refill(self, now_s: float, in_system: int) -> None:
        """Those that come because others went are in the queue. `in_system` have left it and not ended."""
        if isinstance(self._load, Offline):
            while not self.queue and self._next is not None:
                self._draw(0.0)
        elif isinstance(self._load, ClosedLoop):
            while self._next is not None and in_system + len(self.queue) < self._load.in_flight:
                self._draw(now_s)

    def _draw(self, queued_s: float) -> None:
        assert self._next is not None
        _, prompt, output, _ = self._next
        if prompt < 1 or output < 1:
            raise ConfigError(
                f"trace: request {self._drawn} has {prompt} prompt and {output} output tokens; each takes one"
            )
        job = Job(self._drawn, queued_s, prompt, output, self._max_tokens)
        self._drawn += 1
        self._next = next(self._requests, None)
        self._record.edge(Edge.QUEUED, job, queued_s)
        if self._layout.ever_holds(job.demand):
            self.queue.append(job)
        else:
            self._record.edge(Edge.FAILED, job, queued_s)
