"""A colocated instance: prompts by the engine's policy, and decode steps in between."""

from dataclasses import dataclass
from functools import partial

from corun_pd.engine.policy import PATIENCE
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events, Host
from corun_pd.planner.instances.prompts import Prompts
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.job import Job
from corun_pd.router.policy import Ledger

__all__ = ["ColocatedInstance"]


@dataclass(slots=True, eq=False, kw_only=True)
class ColocatedInstance(Ledger):
    """A ledger to the router's policy, and the instance itself.

    Between two decode steps the policy is asked again only when its answer can have changed: a row ended, a
    prompt came, or its patience is over. `put_off` is for how many decode steps prompts have waited.
    `wake` is the step after which that is, and its time; an event of another plan is stale.
    """

    host: Host
    prompts: Prompts
    rows: Rows
    is_busy: bool = False
    put_off: int = 0
    wake: tuple[int, float] | None = None

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt is in the queue."""
        job.become_candidate(self.info, output=job.demand.max_tokens)
        is_first = not self.prompts
        self.prompts.add(job)
        if self.is_busy:
            return []
        if not self.rows:
            self.is_busy = True
            return [(now_s, self._step)]
        steps = self.rows.steps_until(now_s)
        if is_first:
            self.put_off = -steps  # nothing waits before the step that is under way ends
        return self._plan(steps)

    def _step(self, now_s: float) -> list[Event]:
        """What the engine does next: a prefill step, decode steps, or nothing."""
        rows = self.rows
        patience = PATIENCE - self.put_off if rows else 0
        step = self.prompts.step(now_s, len(rows), patience)
        if step is not None:
            self.is_busy, self.put_off = True, 0
            end_s, done = step
            return [(end_s, partial(self._prefilled, done))]
        self.is_busy = False
        if not rows:
            return []
        rows.now_s = now_s
        steps = rows.steps_to_end
        return self._plan(min(steps, patience) if self.prompts and patience > 0 else steps)

    def _prefilled(self, done: list[Job], now_s: float) -> Events:
        events: list[Event] = []
        for job in done:
            events += self.host.prompt_computed(job, now_s)
            if job.output > 1:
                self.host.decode_started(job, now_s)
                self.rows.join(job)
            else:
                events += self._finished(job, now_s)
        return events + self._step(now_s)

    def _plan(self, steps: int) -> list[Event]:
        """Stops after `steps` more decode steps, unless that is planned for an earlier one."""
        step = self.rows.steps + steps
        if self.wake is not None and self.wake[0] <= step:
            return []
        at_s = self.rows.now_s + self.rows.duration_s(steps)
        self.wake = (step, at_s)
        return [(at_s, partial(self._wake, step))]

    def _wake(self, step: int, now_s: float) -> Events:
        if (step, now_s) != self.wake:
            return []
        self.wake, self.is_busy = None, True
        steps = step - self.rows.steps
        self.put_off = self.put_off + steps if self.prompts else 0
        self.rows.advance(steps, now_s)
        events: list[Event] = []
        for job in self.rows.pop_ended():
            events += self._finished(job, now_s)
        return events + self._step(now_s)

    def _finished(self, job: Job, now_s: float) -> Events:
        self.prompts.held_blocks -= job.blocks
        return self.host.finished(job, now_s)
