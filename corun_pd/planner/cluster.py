"""The simulated cluster: a queue before instances that the router's policy picks.

The rules are those of the router's admission: first come, first served, room reserved before work starts,
and every room that is given back wakes the head of the queue. A sample whose instance fails runs again
from its prompt (`router.replay`), behind those that wait.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Final

from corun_pd.core import Edge
from corun_pd.errors import ConfigError
from corun_pd.planner.cost import Profile
from corun_pd.planner.events import Event
from corun_pd.planner.failures import PAUSE_S, Failures
from corun_pd.planner.instances.device import Device
from corun_pd.planner.instances.prompts import Prompts
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.instances.steps import Instance
from corun_pd.planner.job import Job
from corun_pd.planner.layout import Layout
from corun_pd.planner.record import Record
from corun_pd.planner.source import Source
from corun_pd.planner.timeline import Timeline

__all__ = ["Cluster"]

#: A sample that was lost so often will not end in a time that anyone plans with.
_MOST_REPLAYS: Final = 1000


class Cluster(ABC):
    """The host of its instances. `in_system` are placed, or lost and not in line again.

    `prompts` and `rows` are the parts of its instances that compute; the timelines are over all of them.
    """

    def __init__(self, source: Source, record: Record, layout: Layout, profile: Profile) -> None:
        self.in_system = 0
        self.failures = 0
        self.prompts: list[Prompts] = []
        self.rows: list[Rows] = []
        self.prefill_busy, self.decode_filled = Timeline(), Timeline()
        self._arrival_s: float | None = None
        self._source = source
        self._record = record
        self._layout = layout
        self._profile = profile
        self._decode_step = profile.decode_step(layout.slots)

    def first_events(self, failures: Failures | None) -> list[Event]:
        """What starts the simulation."""
        self._share_devices()
        events: list[Event] = [(0.0, self._place)]
        if failures is not None:
            for number, instance in enumerate(self._instances()):
                events.append(_Fate(self, instance, failures, failures.draws(number)).next_failure(0.0))
        return events

    def decode_started(self, job: Job, now_s: float) -> None:
        """The job is a row from its next step on."""
        self._record.edge(Edge.DECODE, job, now_s)

    def _share_devices(self) -> None:
        size, instances = self._layout.per_device, list(self._instances())
        if size == 1:
            return
        beside = self._profile.beside
        if beside is None:
            raise ConfigError("profile: was not measured with another engine at work on the device")
        for at in range(0, len(instances), size):
            Device(beside, instances[at : at + size])

    def _arrive(self, now_s: float) -> list[Event]:
        self._source.arrive(now_s)
        return self._place(now_s)

    def _place(self, now_s: float) -> list[Event]:
        """Places those at the head of the queue, as long as there is room."""
        events: list[Event] = []
        source = self._source
        while True:
            source.refill(now_s, self.in_system)
            started = self._submit(source.queue[0], now_s) if source.queue else None
            if started is None:
                break
            events += started
        arrival_s = source.next_arrival_s()
        if arrival_s is not None and arrival_s != self._arrival_s:
            self._arrival_s = arrival_s
            events.append((arrival_s, self._arrive))
        return events

    def _started(self, job: Job, now_s: float) -> None:
        self.in_system += 1
        self._record.edge(Edge.PREFILL, job, now_s)

    def _end(self, job: Job, now_s: float) -> list[Event]:
        self.in_system -= 1
        self._record.finish(job, now_s)
        return self._place(now_s)

    @property
    def is_over(self) -> bool:
        """Whether all requests have ended and none will come."""
        return not self.in_system and self._source.is_dry

    def fail(self, instance: Instance, now_s: float) -> list[Event]:
        """The instance is gone, and with it what it had."""
        self.failures += 1
        events = self._lose(instance, now_s)
        return events + self._place(now_s)

    def restart(self, instance: Instance, now_s: float) -> list[Event]:
        """The instance is back, as new."""
        self._pool_of(instance).append(instance)
        return self._place(now_s)

    def _replay(self, job: Job, now_s: float) -> Event:
        """The sample was lost; it stands in line again after a moment, for itself alone."""
        job.siblings = []
        job.replays += 1
        if job.replays > _MOST_REPLAYS:
            raise ConfigError(
                f"failures: request {job.index} was lost {job.replays} times; instances fail too often for it"
            )
        self._record.replay(job, now_s)
        return (now_s + PAUSE_S, partial(self._again, job))

    def _again(self, job: Job, now_s: float) -> list[Event]:
        self.in_system -= 1
        self._source.requeue(job)
        return self._place(now_s)

    def _make_prompts(self) -> Prompts:
        layout = self._layout
        self.prompts.append(Prompts(self._profile.prefill, layout.slots, layout.blocks, self.prefill_busy))
        return self.prompts[-1]

    def _make_rows(self) -> Rows:
        self.rows.append(Rows(self._decode_step, self.decode_filled))
        return self.rows[-1]

    @abstractmethod
    def _instances(self) -> Sequence[Instance]:
        """All of them, those first that come first in a layout's words."""

    @abstractmethod
    def _pool_of(self, instance: Instance) -> list[Instance]:
        """Those of its role that run."""

    @abstractmethod
    def _submit(self, job: Job, now_s: float) -> list[Event] | None:
        """Reserves room for the head of the queue, takes it from there and starts it; None: no room now."""

    @abstractmethod
    def _lose(self, instance: Instance, now_s: float) -> list[Event]:
        """Takes the instance out of its pool and has what it lost replayed."""


class _Fate:
    """Has one instance fail and come back, for as long as there is work."""

    def __init__(
        self, cluster: Cluster, instance: Instance, failures: Failures, draws: random.Random
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._failures = failures
        self._draws = draws

    def next_failure(self, now_s: float) -> Event:
        """When it fails next; it runs from `now_s` on."""
        return (now_s + self._draws.expovariate(1 / self._failures.mean_s), self._fail)

    def _fail(self, now_s: float) -> list[Event]:
        if self._cluster.is_over:
            return []
        events = self._cluster.fail(self._instance, now_s)
        return [*events, (now_s + self._failures.restart_s, self._restart)]

    def _restart(self, now_s: float) -> list[Event]:
        return [*self._cluster.restart(self._instance, now_s), self.next_failure(now_s)]
