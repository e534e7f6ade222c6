"""A prefill instance: the engine's policy step after step, and blocks that stay until they are pulled."""

from dataclasses import dataclass

from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events
from corun_pd.planner.instances.steps import PromptInstance
from corun_pd.planner.job import Job

__all__ = ["PrefillInstance"]


@dataclass(eq=False, kw_only=True)
class PrefillInstance(PromptInstance):
    """A ledger to the router's policy, and the instance itself. `is_waking`: it looks at its queue now."""

    is_waking: bool = False

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt is in the queue. Jobs that come at one moment come before the step that it starts."""
        job.become_candidate(self.info, output=1)
        self.prompts.add(job)
        return self._wake(now_s)

    def release(self, blocks: int, now_s: float) -> list[Event]:
        """A prompt's blocks are in the pool again."""
        self.prompts.held_blocks -= blocks
        return self._wake(now_s)

    def _wake(self, now_s: float) -> list[Event]:
        if self.is_waking or self.step is not None or not self.prompts:
            return []
        self.is_waking = True
        return [(now_s, self._start)]

    def _start(self, now_s: float) -> list[Event]:
        self.is_waking = False
        step = self.prompts.step(rows=0, patience=0)
        events = [] if step is None else self._begin(*step, now_s)
        return events + self._changed(now_s)

    def _prefilled(self, done: list[Job], now_s: float) -> Events:
        events = self._start(now_s)  # before the router hears what the step gave
        for job in done:
            events += self.host.prompt_computed(job, now_s)
        return events
