"""A prefill instance: the engine's policy step after step, and blocks that stay until they are pulled."""

from dataclasses import dataclass
from functools import partial

from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events, Host
from corun_pd.planner.instances.prompts import Prompts
from corun_pd.planner.job import Job
from corun_pd.router.policy import Ledger

__all__ = ["PrefillInstance"]


@dataclass(slots=True, eq=False, kw_only=True)
class PrefillInstance(Ledger):
    """A ledger to the router's policy, and the instance itself."""

    host: Host
    prompts: Prompts
    is_busy: bool = False

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """The prompt is in the queue. Jobs that come at one moment come before the step that it starts."""
        job.become_candidate(self.info, output=1)
        self.prompts.add(job)
        return self._wake(now_s)

    def release(self, job: Job, now_s: float) -> list[Event]:
        """The job's blocks are in the pool again."""
        self.prompts.held_blocks -= job.blocks
        return self._wake(now_s)

    def _wake(self, now_s: float) -> list[Event]:
        if self.is_busy or not self.prompts:
            return []
        self.is_busy = True
        return [(now_s, self._start)]

    def _start(self, now_s: float) -> list[Event]:
        step = self.prompts.step(now_s, rows=0, patience=0)
        self.is_busy = step is not None
        if step is None:
            return []
        end_s, done = step
        return [(end_s, partial(self._end, done))]

    def _end(self, done: list[Job], now_s: float) -> Events:
        events = [event for job in done for event in self.host.prompt_computed(job, now_s)]
        return events + self._start(now_s)
