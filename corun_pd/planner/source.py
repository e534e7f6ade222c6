"""The requests as they come to the simulated router, drawn from the trace no sooner than needed."""

from collections import deque
from collections.abc import Iterable

from corun_pd.core import Edge
from corun_pd.errors import ConfigError, SetupError
from corun_pd.planner.cost import RouterCost
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.record import Record
from corun_pd.planner.traces import TraceRequest

__all__ = ["RoutedSource", "Source"]


class Source:
    """`queue` holds the samples that came and wait; the first of a prompt's stands for all of them.

    `max_tokens` is what clients ask for; a longer answer asks for itself. What `layout` can never
    hold is refused when it comes. A colocated engine computes a prompt for every sample, so there each
    stands in line for itself.
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
        self._waiting = 0
        self._behind: deque[Job] = deque()
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
            if not self.queue and self._behind:
                self.queue.append(self._behind.popleft())
        elif isinstance(self._load, ClosedLoop):
            while self._next is not None and in_system + self._waiting < self._load.in_flight:
                self._draw(now_s)

    def requeue(self, job: Job) -> None:
        """The last in the queue. Offline, that is behind the whole trace, which is there from the start."""
        self._waiting += 1 + len(job.siblings)
        (self._behind if isinstance(self._load, Offline) else self.queue).append(job)

    def take(self) -> Job:
        """The head of the queue leaves it, and with it its siblings."""
        job = self.queue.popleft()
        self._waiting -= 1 + len(job.siblings)
        return job

    @property
    def is_dry(self) -> bool:
        """Whether none waits and none will come by itself."""
        return self._next is None and not self._waiting

    def _draw(self, queued_s: float) -> None:
        """The next request, all of its samples."""
        first = self._next
        assert first is not None
        if first.group is None:
            self._next = next(self._requests, None)
            self._enqueue([self._job(first, queued_s, self._max_tokens)])
            return
        samples = [first]
        while (following := next(self._requests, None)) is not None and following.group == first.group:
            samples.append(following)
        self._next = following
        most = max(self._max_tokens, *(sample.output_tokens for sample in samples))  # they ask for one limit
        self._enqueue([self._job(sample, queued_s, most) for sample in samples])

    def _job(self, request: TraceRequest, queued_s: float, max_tokens: int) -> Job:
        prompt, output = request.prompt_tokens, request.output_tokens
        if prompt < 1 or output < 1:
            raise ConfigError(
                f"trace: request {self._drawn} has {prompt} prompt and {output} output tokens; each takes one"
            )
        job = Job(self._drawn, queued_s, prompt, output, max_tokens)
        self._drawn += 1
        self._record.edge(Edge.QUEUED, job, queued_s)
        return job

    def _enqueue(self, samples: list[Job]) -> None:
        first = samples[0]
        if not self._layout.ever_holds(first.demand):
            for job in samples:
                self._record.refuse(job, job.queued_s)
            return
        self._waiting += len(samples)
        if self._layout.colocated:
            self.queue += samples
        else:
            first.siblings = samples[1:]
            self.queue.append(first)


class RoutedSource(Source):
    """Requests that a router takes in one after the other, which costs time.

    `coming` is the next one: when it came to the router, and when the router has it in its queue.
    """

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        load: Load,
        max_tokens: int,
        record: Record,
        layout: Layout,
        router: RouterCost,
    ) -> None:
        super().__init__(requests, load, max_tokens, record, layout)
        self.coming: tuple[float, float] | None = None
        self._router = router
        self._free_s = 0.0
        self._in_system = 0
        self._prepare(0.0)

    def next_arrival_s(self) -> float | None:
        """When the router has the next request; None: not before others end."""
        return None if self.coming is None else self.coming[1]

    def arrive(self, now_s: float) -> None:
        """See `Source.arrive`."""
        while self.coming is not None and self.coming[1] <= now_s:
            came_s, self.coming = self.coming[0], None
            self._draw(came_s)
            self._prepare(now_s)

    def refill(self, now_s: float, in_system: int) -> None:
        """See `Source.refill`."""
        self._in_system = in_system
        self._prepare(now_s)
        if not self.queue and self._behind and self._next is None:
            self.queue.append(self._behind.popleft())

    def _prepare(self, now_s: float) -> None:
        """The router turns to the next request, if there is one."""
        load = self._load
        if self.coming is not None or self._next is None:
            return
        came_s = 0.0
        if isinstance(load, ClosedLoop):
            if self._in_system + self._waiting >= load.in_flight:
                return
            came_s = now_s
        elif isinstance(load, Online):
            came_s = super().next_arrival_s() or 0.0
        self._free_s = max(self._free_s, came_s) + self._router.request_s
        self.coming = (came_s, self._free_s + self._router.latency_s)
