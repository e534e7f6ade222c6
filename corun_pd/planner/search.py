"""The best layout under a GPU budget, or why there is none.

Layouts are simulated in the order of what they could do at best, until no other can be among the best that
were found; one that falls behind these is given up in the middle. So the answer is that of a full search.
"""

import heapq
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from corun_pd.planner.columns import Columns
from corun_pd.planner.cost import Profile
from corun_pd.planner.failures import Failures
from corun_pd.planner.goal import Goal
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import Load, Online
from corun_pd.planner.memory import Infeasible
from corun_pd.planner.outcome import Outcome
from corun_pd.planner.simulator import Overtime, simulate
from corun_pd.planner.space import Space
from corun_pd.planner.traces import TraceRequest
from corun_pd.planner.work import Work

__all__ = ["Plan", "Search", "search"]

#: So many plans are the best there are; those after them are of the layouts that happened to be simulated.
BEST: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout, what it takes, and what came of it.

    No schedule beats `least_makespan_s`. `cost` is the objective's, in its unit, and `least_cost` what no
    schedule on the layout beats.
    """

    layout: Layout
    profile: Profile
    gpus: int
    least_makespan_s: float
    outcome: Outcome
    cost: float
    least_cost: float


@dataclass(frozen=True, slots=True)
class _Task:
    """A layout to simulate, with the least that the objective can be on it."""

    least_cost: float
    number: int
    least_s: float
    layout: Layout
    profile: Profile
    gpus: int


@dataclass(slots=True, kw_only=True)
class Search:
    """How to search.

    `max_tokens` is what clients ask for; `failures` of instances; `every`: simulate all layouts to their
    ends; `workers` processes simulate beside each other.
    """

    max_tokens: int = 0
    failures: Failures | None = None
    every: bool = False
    workers: int = 1


def search(
    requests: Callable[[], Iterable[TraceRequest]],
    space: Space,
    goal: Goal,
    load: Load,
    how: Search | None = None,
) -> list[Plan]:
    """Plans that meet the goal, best first: the best two for certain, then others that were simulated.

    `requests` gives the workload; it is read once. Raises Infeasible, naming the limit that binds, when no
    layout meets the goal.
    """
    how = how or Search()
    workload = Columns.of(requests())
    works = {id(profile): Work.of(workload, profile) for profile in space.profiles}
    _check_reachable(works.values(), space, goal)
    found = _Found(space, goal, how.every)
    span_s = workload.arrival_span_s / load.speed if isinstance(load, Online) else 0.0
    tasks = sorted(_tasks(space, works, goal, span_s), key=lambda task: (task.least_cost, task.number))
    runner = _Runner(workload, load, how.max_tokens, how.failures)
    if how.workers == 1:
        for task in tasks:
            if found.beats(task):
                break
            found.add(task, runner.run(task, found.until_s(task)))
    else:
        _run_beside(runner, tasks, found, how.workers)
    if not found.met:
        raise _unmet(found.missed, goal)
    return sorted(found.met, key=lambda plan: plan.cost)


@dataclass(slots=True)
class _Found:
    """What simulations gave."""

    space: Space
    goal: Goal
    every: bool
    met: list[Plan] = field(default_factory=list)
    missed: list[Plan] = field(default_factory=list)

    @property
    def bar(self) -> float:
        """What costs more is none of the best."""
        best = heapq.nsmallest(BEST, (plan.cost for plan in self.met))
        return best[-1] if len(best) == BEST and not self.every else math.inf

    def beats(self, task: _Task) -> bool:
        """Whether neither this layout nor one that comes after it can be among the best."""
        return task.least_cost > self.bar

    def until_s(self, task: _Task) -> float:
        """When the layout's simulation shows that it is none of the best."""
        return self.goal.makespan_s(self.bar, task.gpus, self.space.price_of(task.profile))

    def add(self, task: _Task, outcome: Outcome | None) -> None:
        """Takes an outcome; None: it was given up. Raises Infeasible for requests that never fit."""
        if outcome is None:
            return
        if outcome.refused:
            raise Infeasible(
                "the KV cache",
                f"{outcome.refused} requests never fit the {self.space.blocks} blocks of an instance",
            )
        cost = self.goal.cost(outcome.makespan_s, task.gpus, self.space.price_of(task.profile))
        plan = Plan(task.layout, task.profile, task.gpus, task.least_s, outcome, cost, task.least_cost)
        (self.met if self.goal.is_met(outcome) else self.missed).append(plan)


@dataclass(frozen=True, slots=True)
class _Runner:
    """Simulates layouts on one workload."""

    workload: Columns
    load: Load
    max_tokens: int
    failures: Failures | None

    def run(self, task: _Task, until_s: float) -> Outcome | None:
        """None when it is not over at `until_s`."""
        try:
            return simulate(
                self.workload,
                task.layout,
                task.profile,
                self.load,
                max_tokens=self.max_tokens,
                failures=self.failures,
                until_s=until_s * (1 + 1e-9),  # what is as good must not be lost to rounding
            )
        except Overtime:
            return None


#: Of a process that simulates: what it was made with.
_runner: list[_Runner] = []


def _run_beside(runner: _Runner, tasks: Sequence[_Task], found: _Found, workers: int) -> None:
    """As one after the other, with a task under way in each process. They are born with the workload."""
    context = multiprocessing.get_context("fork")
    left = iter(tasks)
    under_way: dict[Future[Outcome | None], _Task] = {}
    with ProcessPoolExecutor(workers, context, _runner.append, (runner,)) as pool:
        try:
            while True:
                while len(under_way) < workers and (task := next(left, None)) is not None:
                    if found.beats(task):
                        left = iter(())
                        break
                    under_way[pool.submit(_run, task, found.until_s(task))] = task
                if not under_way:
                    return
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    found.add(under_way.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(task: _Task, until_s: float) -> Outcome | None:
    return _runner[-1].run(task, until_s)


def _tasks(space: Space, works: dict[int, Work], goal: Goal, span_s: float) -> Iterator[_Task]:
    """Every layout; none is over before the last request comes, `span_s` after the first."""
    for number, (layout, profile) in enumerate(space.layouts()):
        least_s = max(works[id(profile)].least_makespan_s(layout), span_s)
        gpus = layout.instances * space.gpus_per_instance
        least_cost = goal.cost(least_s, gpus, space.price_of(profile))
        yield _Task(least_cost, number, least_s, layout, profile, gpus)


def _check_reachable(works: Iterable[Work], space: Space, goal: Goal) -> None:
    """What no number of instances can give is told before any is added."""
    works = list(works)
    for bound in goal.ttft:
        first_s = min(work.alone.at(bound.percentile) for work in works)
        if bound.seconds < first_s:
            raise Infeasible(
                "the TTFT target",
                f"{bound.percentile} % of prompts take up to {first_s:.4g} s alone on an idle instance, "
                f"above {bound.seconds:g} s; more instances do not help",
            )
    step_s = min(p.decode_step(slots).base_s for p in space.profiles for slots in space.slots)
    for bound in goal.tpot:
        if bound.seconds < step_s:
            raise Infeasible(
                "the TPOT target",
                f"a decode step takes {step_s:.4g} s at the smallest N, above {bound.seconds:g} s; "
                "more instances do not help",
            )


def _unmet(missed: Sequence[Plan], goal: Goal) -> Infeasible:
    """The bound that binds on the layout that comes nearest."""

    def excess(plan: Plan) -> tuple[float, str, int, float, float]:
        return max(
            (found / b.seconds, b.metric, b.percentile, found, b.seconds)
            for b, found in goal.bounds(plan.outcome)
        )

    nearest = min(missed, key=lambda plan: excess(plan)[0])
    _, name, percentile, found, bound = excess(nearest)
    return Infeasible(
        f"the {name} target",
        f"the best of {len(missed)} layouts, {nearest.layout.words} with N = {nearest.layout.slots}, "
        f"has a {percentile}th percentile of {found:.4g} s, above {bound:g} s; the GPU budget is used up",
    )
