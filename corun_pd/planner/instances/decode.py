"""A decode instance: KV caches are pulled while a slot is free for them, and rows join between steps."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from corun_pd.planner.cost import TransferCost
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events, Host
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.job import Job
from corun_pd.router.policy import Ledger

__all__ = ["DecodeInstance"]


@dataclass(slots=True, eq=False, kw_only=True)
class DecodeInstance(Ledger):
    """A ledger to the router's policy, and the instance itself.

    Room in its pool was reserved by the router, so a pull waits for a slot alone, and then for the link.
    `wake` is the step after which it looks at its rows next, and its time; an event of another plan is stale.
    """

    host: Host
    rows: Rows
    transfer: TransferCost
    kv_bytes_per_token: int
    handed_off: deque[Job] = field(default_factory=deque)
    pulled: list[Job] = field(default_factory=list)
    pulling: int = 0
    link_free_s: float = 0.0
    wake: tuple[int, float] | None = None

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt's KV cache can be pulled."""
        self.handed_off.append(job)
        return self._pull(now_s)

    def _pull(self, now_s: float) -> list[Event]:
        """Starts pulls for free slots, at the next border of a step, one after the other on the link."""
        events: list[Event] = []
        if not self.handed_off:
            return events
        rows = self.rows
        while self.handed_off and len(rows) + self.pulling + len(self.pulled) < self.info.slots:
            job = self.handed_off.popleft()
            border_s = rows.now_s + rows.duration_s(rows.steps_until(now_s)) if rows else now_s
            size = job.prompt * self.kv_bytes_per_token
            self.link_free_s = max(border_s, self.link_free_s) + size / self.transfer.bytes_per_s
            self.pulling += 1
            events.append((self.link_free_s + self.transfer.latency_s, partial(self._pulled, job)))
        return events

    def _pulled(self, job: Job, now_s: float) -> Events:
        self.pulling -= 1
        self.pulled.append(job)
        events = list(self.host.prompt_pulled(job, now_s))
        if not self.rows:
            self.rows.now_s = max(self.rows.now_s, now_s)
        return events + self._plan(self.rows.steps_until(now_s) if self.rows else 0)

    def _plan(self, steps: int) -> list[Event]:
        """Looks at the rows after `steps` more steps, unless that is planned for an earlier one."""
        step = self.rows.steps + steps
        if self.wake is not None and self.wake[0] <= step:
            return []
        at_s = self.rows.now_s + self.rows.duration_s(steps)
        self.wake = (step, at_s)
        return [(at_s, partial(self._wake, step))]

    def _wake(self, step: int, now_s: float) -> Events:
        if (step, now_s) != self.wake:
            return []
        self.wake = None
        rows = self.rows
        rows.advance(step - rows.steps, now_s)
        events: list[Event] = []
        for job in rows.pop_ended():
            events += self.host.finished(job, now_s)
        for job in self.pulled:
            rows.join(job)
            self.host.decode_started(job, now_s)
        self.pulled.clear()
        events += self._pull(now_s)
        return events + self._plan(rows.steps_to_end) if rows else events
