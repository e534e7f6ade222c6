"""A colocated instance: prompts by the engine's policy, and decode steps in between."""

from dataclasses import dataclass

from corun_pd.engine.policy import PATIENCE
from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.steps import PromptInstance, RowInstance
from corun_pd.planner.job import Job

__all__ = ["ColocatedInstance"]


@dataclass(eq=False, kw_only=True)
class ColocatedInstance(PromptInstance, RowInstance):
    """A ledger to the router's policy, and the instance itself.

    Between two decode steps the policy is asked again only when its answer can have changed: a row ended, a
    prompt came, or its patience is over. `put_off` is for how many decode steps prompts have waited.
    The engine goes on before the router hears what a step gave, so what the router does about it is too
    late for the next step. `is_starting`: it was idle, and starts when all that comes at this moment has
    come.
    """

    is_starting: bool = False
    put_off: int = 0

    @property
    def computes(self) -> bool:
        """Whether a step of either kind is under way."""
        return self.step is not None or bool(self.rows)

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt is in the queue. Jobs that come at one moment come before the step that it starts."""
        job.become_candidate(self.info, output=job.demand.max_tokens)
        is_first = not self.prompts
        self.prompts.add(job)
        if self.step is not None or self.is_starting:
            return []
        if not self.rows:
            self.is_starting = True
            return [(now_s, self._start)]
        steps = max(1, self.rows.steps_until(self.pace.own_s(now_s)))  # one has started, if only just now
        if is_first:
            self.put_off = -steps  # nothing waits before the step that is under way ends
        return self._plan(steps)

    def fail(self, now_s: float) -> list[Event]:
        """See `Instance.fail`."""
        self.prompts.clear()
        self.rows.clear()
        self.step = self.wake = None
        self.put_off = 0
        return RowInstance.fail(self, now_s)

    def repace(self, now_s: float) -> list[Event]:
        """See `Instance.repace`."""
        return PromptInstance.repace(self, now_s) if self.step else RowInstance.repace(self, now_s)

    def _start(self, now_s: float) -> list[Event]:
        self.is_starting = False
        return self._step(now_s)

    def _step(self, now_s: float) -> list[Event]:
        """What the engine does next: a prefill step, decode steps, or nothing."""
        rows = self.rows
        patience = PATIENCE - self.put_off if rows else 0
        step = self.prompts.step(len(rows), patience)
        if step is not None:
            self.put_off = 0
            return self._begin(*step, now_s) + self._changed(now_s)
        if not rows:
            return self._changed(now_s)
        self._adapt(now_s, decodes=True)
        rows.resume(self.pace.own_s(now_s), now_s)
        steps = rows.steps_to_end
        events = self._plan(min(steps, patience) if self.prompts and patience > 0 else steps)
        return events + self._changed(now_s)

    def _prefilled(self, done: list[Job], now_s: float) -> Events:
        for job in done:
            if job.output > 1:
                self.rows.join(job)
            else:
                self.prompts.held_blocks -= job.blocks
        events = self._step(now_s)
        for job in done:
            events += self.host.prompt_computed(job, now_s)
            if job.output > 1:
                self.host.decode_started(job, now_s)
            else:
                events += self.host.finished(job, now_s)
        return events

    def _look(self, steps: int, now_s: float) -> Events:
        self.put_off = self.put_off + steps if self.prompts else 0
        ended = self.rows.pop_ended()
        self.prompts.held_blocks -= sum(job.blocks for job in ended)
        events = self._step(now_s)
        for job in ended:
            events += self.host.finished(job, now_s)
        return events
