"""A decode instance: KV caches are pulled while a slot is free for them, and rows join between steps."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from corun_pd.planner.cost import TransferCost
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.steps import RowInstance
from corun_pd.planner.job import Job

__all__ = ["DecodeInstance"]


class _Pull:
    """A pull under way."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job


@dataclass(eq=False, kw_only=True)
class DecodeInstance(RowInstance):
    """A ledger to the router's policy, and the instance itself.

    Room in its pool was reserved by the router, so a pull waits for a slot alone, and then for the link.
    `handed_off` wait for that, `pulled` for the next border of a step.
    """

    transfer: TransferCost
    kv_bytes_per_token: int
    handed_off: deque[Job] = field(default_factory=deque)
    pulling: set[_Pull] = field(default_factory=set)
    pulled: list[Job] = field(default_factory=list)
    link_free_s: float = 0.0

    @property
    def computes(self) -> bool:
        """Whether there are rows."""
        return bool(self.rows)

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt's KV cache can be pulled."""
        self.handed_off.append(job)
        return self._pull(now_s)

    def drop(self, jobs: set[Job], now_s: float) -> list[Event]:
        """What these were to be pulled from is gone."""
        self.handed_off = deque(job for job in self.handed_off if job not in jobs)
        self.pulling = {pull for pull in self.pulling if pull.job not in jobs}
        return self._pull(now_s)

    def fail(self, now_s: float) -> list[Event]:
        """See `Instance.fail`."""
        self.handed_off.clear()
        self.pulling.clear()
        self.pulled.clear()
        self.wake = None
        self.rows.clear()
        self.link_free_s = now_s
        return RowInstance.fail(self, now_s)

    def _pull(self, now_s: float) -> list[Event]:
        """Starts pulls for free slots, at the next border of a step, one after the other on the link."""
        events: list[Event] = []
        if not self.handed_off:
            return events
        free = self.info.slots - len(self.rows) - len(self.pulling) - len(self.pulled)
        if free <= 0:
            return events
        border_s = self._border_s(now_s)
        while self.handed_off and free:
            job = self.handed_off.popleft()
            size = job.prompt * self.kv_bytes_per_token
            self.link_free_s = max(border_s, self.link_free_s) + size / self.transfer.bytes_per_s
            pull = _Pull(job)
            self.pulling.add(pull)
            free -= 1
            events.append((self.link_free_s + self.transfer.latency_s, partial(self._pulled, pull)))
        return events

    def _border_s(self, now_s: float) -> float:
        """When the step that is under way ends; now, when none is."""
        rows = self.rows
        if not rows:
            return now_s
        return self.pace.at_s(rows.now_s + rows.duration_s(rows.steps_until(self.pace.own_s(now_s))))

    def _pulled(self, pull: _Pull, now_s: float) -> Events:
        if pull not in self.pulling:
            return ()  # it was lost
        self.pulling.remove(pull)
        self.pulled.append(pull.job)
        events = list(self.host.prompt_pulled(pull.job, now_s))
        own_s = self.pace.own_s(now_s)
        if not self.rows:
            self.rows.resume(own_s, now_s)
            return events + self._plan(0)
        return events + self._plan(self.rows.steps_until(own_s))

    def _look(self, steps: int, now_s: float) -> Events:
        rows = self.rows
        events: list[Event] = []
        for job in rows.pop_ended():
            events += self.host.finished(job, now_s)
        for job in self.pulled:
            rows.join(job)
            self.host.decode_started(job, now_s)
        self.pulled.clear()
        events += self._pull(now_s)
        if rows:
            events += self._plan(rows.steps_to_end)
        return events + self._changed(now_s)
