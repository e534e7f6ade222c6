"""Plans (C27): the best layout, and why there is none."""

from collections.abc import Iterable
from typing import Any

import pytest

from corun_pd.errors import ConfigError
from corun_pd.planner.goal import Bound, Goal, Objective
from corun_pd.planner.layout import Layout
from corun_pd.planner.load import Load, Offline, Online
from corun_pd.planner.memory import Infeasible
from corun_pd.planner.search import Plan, Search, search
from corun_pd.planner.simulator import simulate
from corun_pd.planner.space import Space
from corun_pd.planner.traces import LogNormal, Synthetic, TraceRequest, Uniform
from corun_pd.planner.work import Work
from tests.unit.planner.make import make_profile

TRACE = Synthetic(150, LogNormal(60, 1.0, 900), Uniform(1, 60), rate_per_s=8)
PACKED = make_profile(
    prefill={"mode": "packed", "chunk_tokens": 256, "full_step_s": 0.2, "context_pair_s": 1e-7},
    decode=[
        {"slots": 4, "base_s": 0.03, "kv_token_s": 1e-6},
        {"slots": 16, "base_s": 0.05, "kv_token_s": 1e-6},
    ],
)
ISOLATED = PACKED.model_validate(
    PACKED.model_dump()
    | {"prefill": {"mode": "isolated", "chunk_tokens": 256, "prompts": [[1, 0.05], [256, 0.2], [1000, 0.9]]}}
)


def make_space(**changes: Any) -> Space:
    fields: dict[str, Any] = {
        "gpus": 4,
        "profiles": (PACKED, ISOLATED),
        "slots": (4, 16),
        "blocks": 200,
        "block_tokens": 16,
    }
    return Space(**fields | changes)


def find(
    load: Load | None = None, goal: Goal | None = None, how: Search | None = None, **space: Any
) -> list[Plan]:
    return search(lambda: TRACE, make_space(**space), goal or Goal(), load or Offline(), how)


PRICES = (2.0, 2.6)


@pytest.mark.parametrize("load", [Offline(), Online()])
@pytest.mark.parametrize("targets", [(), (Bound("TTFT", 95, 15.0), Bound("TPOT", 50, 0.06))])
def test_two_best_plans_are_those_of_a_full_search(load: Load, targets: tuple[Bound, ...]) -> None:
    """By each objective, with targets and without: what was left out or given up is no better."""
    space = make_space(prices=PRICES)
    outcomes = [
        (layout, profile, simulate(TRACE, layout, profile, load)) for layout, profile in space.layouts()
    ]
    assert len(outcomes) == 40
    for objective in Objective:
        goal = Goal(objective, targets)
        costs = sorted(
            goal.cost(outcome.makespan_s, layout.instances, PRICES[profile is ISOLATED])
            for layout, profile, outcome in outcomes
            if goal.is_met(outcome)
        )
        found = find(load, goal, prices=PRICES)
        assert [plan.cost for plan in found[:2]] == costs[:2]
        assert all(goal.is_met(plan.outcome) and plan.least_cost <= plan.cost for plan in found)


def test_processes_find_what_one_finds() -> None:
    """The same best plans; with `every` all plans, in the same order."""
    goal = Goal(Objective.COST, (Bound("TTFT", 95, 3.0),))
    assert find(Online(), goal, Search(workers=2))[:2] == find(Online(), goal)[:2]
    alone = find(how=Search(every=True), gpus=2)
    assert find(how=Search(every=True, workers=3), gpus=2) == alone
    assert len(alone) == len(list(make_space(gpus=2).layouts()))


def test_price_decides_between_machines() -> None:
    """The one that is faster wins until it costs more than its speed is worth."""
    double = PACKED.scaled(prefill=0.5, decode=0.5)
    goal = Goal(Objective.COST)

    def machine(fast: float) -> bool:
        return find(goal=goal, profiles=(PACKED, double), prices=(1.0, fast))[0].profile is double

    assert machine(fast=1.9)
    assert not machine(fast=2.1)


@pytest.mark.parametrize("prices", [(0.0,), (-1.0,), (1.0, 2.0, 3.0), (float("nan"),)])
def test_price_without_sense_is_refused(prices: tuple[float, ...]) -> None:
    """Too many, or not positive."""
    with pytest.raises(ConfigError, match="price"):
        make_space(prices=prices)


def test_no_layout_beats_its_bound() -> None:
    """The bound is a proof, for each layout, mode and N."""
    works = {id(profile): Work.of(TRACE, profile) for profile in (PACKED, ISOLATED)}
    for layout, profile in make_space().layouts():
        least_s = works[id(profile)].least_makespan_s(layout)
        assert 0 < least_s <= simulate(TRACE, layout, profile, Offline()).makespan_s


def test_bound_counts_a_prompt_of_several_samples_once_where_it_is_computed_once() -> None:
    """Eight samples of each prompt, hardly any decode: apart is faster than eight prompts would be."""
    groups = [TraceRequest(None, 256, 2, group=at) for at in range(20) for _ in range(8)]
    work = Work.of(groups, PACKED)
    apart, whole = (
        Layout(slots=16, blocks=2000, block_tokens=16, **counts)
        for counts in ({"prefill": 1, "decode": 1}, {"colocated": 1})
    )
    assert work.least_makespan_s(apart) == pytest.approx(20 * 0.2)
    assert work.least_makespan_s(whole) > 8 * 20 * 0.2
    for layout in (apart, whole):
        assert work.least_makespan_s(layout) <= simulate(groups, layout, PACKED, Offline()).makespan_s


def test_bound_spares_simulations() -> None:
    """An offline plan need not try what cannot win."""
    assert len(find()) < len(list(make_space().layouts()))


@pytest.mark.parametrize(
    ("gpus", "each", "problem"), [(0, 1, "of 0 there"), (8, 9, "takes 9 GPUs, of 8 there")]
)
def test_budget_below_one_instance_is_infeasible(gpus: int, each: int, problem: str) -> None:
    """And says what is missing."""
    with pytest.raises(Infeasible, match=problem) as caught:
        find(gpus=gpus, gpus_per_instance=each)
    assert caught.value.limit == "the GPU budget"


def test_latency_that_no_number_of_instances_reaches_adds_none() -> None:
    """One prefill takes longer; one step at the smallest N takes longer."""
    with pytest.raises(Infeasible, match="more instances do not help") as caught:
        find(goal=Goal(targets=(Bound("TTFT", 95, 0.01),)), gpus=1000)
    assert caught.value.limit == "the TTFT target"
    with pytest.raises(Infeasible, match=r"0\.03 s at the smallest N.*more instances do not help") as caught:
        find(goal=Goal(targets=(Bound("TPOT", 95, 0.029),)), gpus=1000)
    assert caught.value.limit == "the TPOT target"


def test_target_that_the_budget_does_not_reach_names_the_nearest_layout() -> None:
    """With what was found there."""
    with pytest.raises(Infeasible, match=r"TTFT target: the best of .* layouts, .*GPU budget") as caught:
        find(Online(4.0), Goal(targets=(Bound("TTFT", 95, 1.0),)), gpus=1)
    assert caught.value.limit == "the TTFT target"


def test_target_costs_instances_and_no_more_than_needed() -> None:
    """A tighter target needs as many GPUs or more, and is met."""
    used = []
    for bound in (60.0, 2.0, 1.2):
        goal = Goal(Objective.GPU_TIME, (Bound("TTFT", 95, bound),))
        best = find(Online(2.0), goal, gpus=6, profiles=(PACKED,))[0]
        assert best.outcome.ttft.p95 <= bound
        used.append(best.gpus)
    assert used == sorted(used)
    assert used[0] < used[-1]


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_bound_that_is_not_positive_is_refused(bound: float) -> None:
    """A size for a senseless target is worse than none."""
    with pytest.raises(ConfigError, match="TPOT"):
        Bound("TPOT", 95, bound)
    with pytest.raises(ConfigError, match="TTFT"):
        Bound("TTFT", 95, bound)
    with pytest.raises(ConfigError, match="percentile 42 of TTFT is none of 50, 90, 95, 99"):
        Bound("TTFT", 42, 1.0)


def test_requests_above_the_kv_cache_are_infeasible() -> None:
    """Not left out of a plan that looks fast."""

    def requests() -> Iterable[TraceRequest]:
        return [TraceRequest(None, 16 * 200, 1), TraceRequest(None, 10, 1)]

    with pytest.raises(Infeasible, match="1 requests never fit the 200 blocks"):
        search(requests, make_space(), Goal(), Offline())
