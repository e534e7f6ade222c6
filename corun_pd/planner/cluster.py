"""The simulated cluster: a queue before instances that the router's policy picks.

The rules are those of the router's admission: first come, first served, room reserved before work starts,
and every room that is given back wakes the head of the queue.
"""

from abc import ABC, abstractmethod

from corun_pd.core import Edge
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import Event
from corun_pd.planner.instances.prompts import Prompts
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.record import Record
from corun_pd.planner.source import Source
from corun_pd.planner.timeline import Timeline

__all__ = ["Cluster"]


class Cluster(ABC):
    """The host of its instances. `in_system` are placed and not over.

    `prompts` and `rows` are the parts of its instances that compute; the timelines are over all of them.
    """

    def __init__(self, source: Source, record: Record, layout: Layout, profile: Profile) -> None:
        self.in_system = 0
        self.prompts: list[Prompts] = []
        self.rows: list[Rows] = []
        self.prefill_busy, self.decode_filled = Timeline(), Timeline()
        self._source = source
        self._record = record
        self._layout = layout
        self._profile = profile
        self._decode_step = profile.decode_step(layout.slots)

    def first_events(self) -> list[Event]:
        """What starts the simulation."""
        arrival_s = self._source.next_arrival_s()
        return [(0.0, self._place)] if arrival_s is None else [(arrival_s, self._arrive)]

    def decode_started(self, job: Job, now_s: float) -> None:
        """The job is a row from its next step on."""
        self._record.edge(Edge.DECODE, job, now_s)

    def _arrive(self, now_s: float) -> list[Event]:
        self._source.arrive(now_s)
        events = self._place(now_s)
        arrival_s = self._source.next_arrival_s()
        if arrival_s is not None:
            events.append((arrival_s, self._arrive))
        return events

    def _place(self, now_s: float) -> list[Event]:
        """Places those at the head of the queue, as long as there is room."""
        events: list[Event] = []
        queue = self._source.queue
        while True:
            self._source.refill(now_s, self.in_system)
            if not queue:
                return events
            job = queue[0]
            started = self._submit(job, now_s)
            if started is None:
                return events
            queue.popleft()
            self.in_system += 1
            self._record.edge(Edge.PREFILL, job, now_s)
            events += started

    def _end(self, job: Job, now_s: float) -> list[Event]:
        self.in_system -= 1
        self._record.edge(Edge.FINISHED, job, now_s)
        return self._place(now_s)

    def _make_prompts(self) -> Prompts:
        layout = self._layout
        self.prompts.append(Prompts(self._profile.prefill, layout.slots, layout.blocks, self.prefill_busy))
        return self.prompts[-1]

    def _make_rows(self) -> Rows:
        self.rows.append(Rows(self._decode_step, self.decode_filled))
        return self.rows[-1]

    @abstractmethod
    def _submit(self, job: Job, now_s: float) -> list[Event] | None:
        """Reserves room and starts it; None: there is no room now."""
