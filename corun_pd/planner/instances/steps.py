"""What the instances of all roles are: a ledger to the router's policy, with steps under way.

An instance plans in its own time (`pace`). An event is stale when what it was made for is no longer
planned, so a change of pace, an earlier plan or a failure needs to take no event back.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from corun_pd.planner.events import Event
from corun_pd.planner.instances.base import Events, Host
from corun_pd.planner.instances.device import Device
from corun_pd.planner.instances.pace import Pace
from corun_pd.planner.instances.prompts import Prompts
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.job import Job
from corun_pd.router.policy import Ledger

__all__ = ["Instance", "PrefillStep", "PromptInstance", "RowInstance"]


@dataclass(eq=False, kw_only=True)
class Instance(Ledger):
    """`lives` counts its failures: what was sent to an earlier life is lost."""

    host: Host
    pace: Pace = field(default_factory=Pace)
    device: Device | None = None
    lives: int = 0

    @property
    def computes(self) -> bool:
        """Whether a step is under way."""
        raise NotImplementedError

    def repace(self, now_s: float) -> list[Event]:
        """Others on its device began or ended to compute: what is planned, at its new time."""
        raise NotImplementedError

    def fail(self, now_s: float) -> list[Event]:
        """All that it had is gone. It is as new."""
        self.legs = self.blocks = self.prompt_tokens = 0
        self.lives += 1
        return self._changed(now_s)

    def _adapt(self, now_s: float, *, decodes: bool) -> bool:
        """Takes the pace of such a step. Whether it is another one than before."""
        device = self.device
        return device is not None and self.pace.change(device.slowness(self, decodes=decodes), now_s)

    def _changed(self, now_s: float) -> list[Event]:
        """It may compute now or no more."""
        return [] if self.device is None else self.device.changed(self, now_s)


class PrefillStep(NamedTuple):
    """A step under way: its start, its end in own time and in the simulation's, the prompts that it ends."""

    start_s: float
    own_end_s: float
    end_s: float
    done: list[Job]


@dataclass(eq=False, kw_only=True)
class PromptInstance(Instance):
    """An instance that computes prompts. `step` is the prefill step under way."""

    prompts: Prompts
    step: PrefillStep | None = None

    @property
    def computes(self) -> bool:
        """Whether a prefill step is under way."""
        return self.step is not None

    def fail(self, now_s: float) -> list[Event]:
        """See `Instance.fail`."""
        self.prompts.clear()
        self.step = None
        return Instance.fail(self, now_s)

    def _begin(self, seconds: float, done: list[Job], now_s: float) -> list[Event]:
        """A prefill step of `seconds` alone starts, and ends the prompts of `done`."""
        self._adapt(now_s, decodes=False)
        own_end_s = self.pace.own_s(now_s) + seconds
        end_s = self.pace.at_s(own_end_s)
        self.step = PrefillStep(now_s, own_end_s, end_s, done)
        return [(end_s, self._end)]

    def _end(self, now_s: float) -> Events:
        step = self.step
        if step is None or step.end_s != now_s:
            return ()
        self.step = None
        self.prompts.computed(step.start_s, now_s)
        return self._prefilled(step.done, now_s)

    def _prefilled(self, done: list[Job], now_s: float) -> Events:
        raise NotImplementedError

    def repace(self, now_s: float) -> list[Event]:
        """See `Instance.repace`."""
        if not self._adapt(now_s, decodes=False) or self.step is None:
            return []
        self.step = self.step._replace(end_s=self.pace.at_s(self.step.own_end_s))
        return [(self.step.end_s, self._end)]


@dataclass(eq=False, kw_only=True)
class RowInstance(Instance):
    """An instance that decodes. Many steps are one event while no row comes or goes.

    `wake` is the step after which it looks at its rows next, and its time; an event of another plan is stale.
    """

    rows: Rows
    wake: tuple[int, float] | None = None

    def _plan(self, steps: int) -> list[Event]:
        """Looks at the rows after `steps` more steps, unless that is planned for an earlier one."""
        rows = self.rows
        step = rows.steps + steps
        if self.wake is not None and self.wake[0] <= step:
            return []
        at_s = self.pace.at_s(rows.now_s + rows.duration_s(steps))
        self.wake = (step, at_s)
        return [(at_s, partial(self._wake, step))]

    def _wake(self, step: int, now_s: float) -> Events:
        if (step, now_s) != self.wake:
            return ()
        self.wake = None
        rows = self.rows
        steps = step - rows.steps
        rows.advance(steps, rows.now_s + rows.duration_s(steps), now_s)
        return self._look(steps, now_s)

    def _look(self, steps: int, now_s: float) -> Events:
        """`steps` steps were taken since the last look."""
        raise NotImplementedError

    def repace(self, now_s: float) -> list[Event]:
        """See `Instance.repace`."""
        if not self._adapt(now_s, decodes=True) or self.wake is None:
            return []
        step, self.wake = self.wake[0], None
        return self._plan(step - self.rows.steps)
