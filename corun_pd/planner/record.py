"""What happened to the requests of a simulation."""

from array import array
from collections.abc import Callable

from corun_pd.core import Edge
from corun_pd.planner.job import Job

__all__ = ["Observer", "Record"]

#: Told of each edge of each request, by its index in the trace, with the time in seconds.
Observer = Callable[[Edge, int, float], None]


class Record:
    """Latencies and counts; the edges go to `observer`, which may be None."""

    def __init__(self, observer: Observer | None) -> None:
        self.ttft_s = array("d")
        self.tpot_s = array("d")
        self.finished = 0
        self.refused = 0
        self.replays = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.first_s: float | None = None
        self.last_s = 0.0
        self._observer = observer

    def edge(self, edge: Edge, job: Job, at_s: float) -> None:
        """The request passes an edge of its life that is not counted."""
        if self._observer is not None:
            self._observer(edge, job.index, at_s)

    def refuse(self, job: Job, at_s: float) -> None:
        """No instance ever holds the request."""
        self.refused += 1
        self.edge(Edge.FAILED, job, at_s)

    def replay(self, job: Job, at_s: float) -> None:
        """The request is lost and runs again."""
        self.replays += 1
        self.edge(Edge.REPLAYED, job, at_s)

    def first_token(self, job: Job, at_s: float) -> None:
        """The first token is there; the client has it already where that is a replay's."""
        if job.first_s is None:
            job.first_s = at_s
            self.ttft_s.append(at_s - job.queued_s)

    def finish(self, job: Job, at_s: float) -> None:
        """The last token is there."""
        self.finished += 1
        self.prompt_tokens += job.prompt
        self.output_tokens += job.output
        self.last_s = at_s
        if self.first_s is None or job.queued_s < self.first_s:
            self.first_s = job.queued_s
        if job.output > 1 and job.first_s is not None:
            self.tpot_s.append((at_s - job.first_s) / (job.output - 1))
        self.edge(Edge.FINISHED, job, at_s)
