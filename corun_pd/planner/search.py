"""The best layout under a GPU budget, or why there is none.

Layouts are simulated in the order of what they could do at best, until no other can be better than the
best that was found. So the answer is that of a full search.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from corun_pd.planner.cost import Profile
from corun_pd.planner.goal import Goal
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import Load
from corun_pd.planner.memory import Infeasible
from corun_pd.planner.outcome import Outcome
from corun_pd.planner.simulator import simulate
from corun_pd.planner.space import Space
from corun_pd.planner.traces import TraceRequest
from corun_pd.planner.work import Work

__all__ = ["Plan", "search"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout, what it takes, and what came of it. No schedule beats `least_makespan_s`."""

    layout: Layout
    profile: Profile
    gpus: int
    least_makespan_s: float
    outcome: Outcome


def search(
    requests: Callable[[], Iterable[TraceRequest]],
    space: Space,
    goal: Goal,
    load: Load,
    *,
    max_tokens: int = 0,
    every: bool = False,
) -> list[Plan]:
    """Plans that meet the goal, best first, of those that had to be simulated; with `every` of all.

    `requests` gives the workload anew at each call. Raises Infeasible, naming the limit that binds, when
    no layout meets the goal.
    """
    works = {id(profile): Work.of(requests(), profile) for profile in space.profiles}
    _check_reachable(works.values(), space, goal)
    met: list[tuple[float, Plan]] = []
    missed: list[Plan] = []
    for bound, least_s, layout, profile in sorted(_bounded(space, works, goal), key=lambda row: row[0]):
        if not every and met and bound >= min(cost for cost, _ in met):
            break
        outcome = simulate(requests(), layout, profile, load, max_tokens=max_tokens)
        if outcome.refused:
            raise Infeasible(
                "the KV cache",
                f"{outcome.refused} requests never fit the {space.blocks} blocks of an instance",
            )
        gpus = layout.instances * space.gpus_per_instance
        plan = Plan(layout, profile, gpus, least_s, outcome)
        if goal.is_met(outcome):
            met.append((goal.cost(outcome.makespan_s, gpus), plan))
        else:
            missed.append(plan)
    if not met:
        raise _unmet(missed, goal)
    return [plan for _, plan in sorted(met, key=lambda pair: pair[0])]


def _bounded(
    space: Space, works: dict[int, Work], goal: Goal
) -> Iterator[tuple[float, float, Layout, Profile]]:
    """Layouts with the least that the objective can be on them."""
    for layout, profile in space.layouts():
        least_s = works[id(profile)].least_makespan_s(layout)
        yield goal.cost(least_s, layout.instances * space.gpus_per_instance), least_s, layout, profile


def _check_reachable(works: Iterable[Work], space: Space, goal: Goal) -> None:
    """What no number of instances can give is told before any is added."""
    first_s = min(work.alone.p95 for work in works)
    if goal.ttft_p95_s is not None and goal.ttft_p95_s < first_s:
        raise Infeasible(
            "the TTFT target",
            f"95 % of prompts take up to {first_s:.4g} s alone on an idle instance, above "
            f"{goal.ttft_p95_s:g} s; more instances do not help",
        )
    step_s = min(p.decode_step(slots).base_s for p in space.profiles for slots in space.slots)
    if goal.tpot_p95_s is not None and goal.tpot_p95_s < step_s:
        raise Infeasible(
            "the TPOT target",
            f"a decode step takes {step_s:.4g} s at the smallest N, above {goal.tpot_p95_s:g} s; "
            "more instances do not help",
        )


def _unmet(missed: Sequence[Plan], goal: Goal) -> Infeasible:
    """The bound that binds on the layout that comes nearest."""

    def excess(plan: Plan) -> tuple[float, str, float, float]:
        return max((found / bound, name, found, bound) for name, found, bound in goal.bounds(plan.outcome))

    nearest = min(missed, key=lambda plan: excess(plan)[0])
    _, name, found, bound = excess(nearest)
    return Infeasible(
        f"the {name} target",
        f"the best of {len(missed)} layouts, {nearest.layout.words} with N = {nearest.layout.slots}, "
        f"has a 95th percentile of {found:.4g} s, above {bound:g} s; the GPU budget is used up",
    )
