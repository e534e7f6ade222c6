"""Plans (C27): the best layout, and why there is none."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

from corun_pd.errors import ConfigError
from corun_pd.planner.goal import Goal, Objective
from corun_pd.planner.load import Load, Offline, Online
from corun_pd.planner.memory import Infeasible
from corun_pd.planner.search import Plan, search
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


def find(load: Load | None = None, goal: Goal | None = None, **space: Any) -> list[Plan]:
    return search(lambda: TRACE, make_space(**space), goal or Goal(), load or Offline())


@pytest.mark.parametrize(("objective", "load"), list(product(Objective, [Offline(), Online()])))
def test_best_plan_is_that_of_a_full_search(objective: Objective, load: Load) -> None:
    """What was left out could not have been better."""
    goal = Goal(objective)
    best = find(load, goal)[0]
    costs = [
        goal.cost(simulate(TRACE, layout, profile, load).makespan_s, layout.instances)
        for layout, profile in make_space().layouts()
    ]
    assert goal.cost(best.outcome.makespan_s, best.gpus) == min(costs)


def test_no_layout_beats_its_bound() -> None:
    """The bound is a proof, for each layout, mode and N."""
    works = {id(profile): Work.of(TRACE, profile) for profile in (PACKED, ISOLATED)}
    for layout, profile in make_space().layouts():
        least_s = works[id(profile)].least_makespan_s(layout)
        assert 0 < least_s <= simulate(TRACE, layout, profile, Offline()).makespan_s


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
        find(goal=Goal(ttft_p95_s=0.01), gpus=1000)
    assert caught.value.limit == "the TTFT target"
    with pytest.raises(Infeasible, match=r"0\.03 s at the smallest N.*more instances do not help") as caught:
        find(goal=Goal(tpot_p95_s=0.029), gpus=1000)
    assert caught.value.limit == "the TPOT target"


def test_target_that_the_budget_does_not_reach_names_the_nearest_layout() -> None:
    """With what was found there."""
    with pytest.raises(Infeasible, match=r"TTFT target: the best of .* layouts, .*GPU budget") as caught:
        find(Online(4.0), Goal(ttft_p95_s=1.0), gpus=1)
    assert caught.value.limit == "the TTFT target"


def test_target_costs_instances_and_no_more_than_needed() -> None:
    """A tighter target needs as many GPUs or more, and is met."""
    used = []
    for bound in (60.0, 2.0, 1.2):
        best = find(Online(2.0), Goal(Objective.GPU_TIME, ttft_p95_s=bound), gpus=6, profiles=(PACKED,))[0]
        assert best.outcome.ttft.p95 <= bound
        used.append(best.gpus)
    assert used == sorted(used)
    assert used[0] < used[-1]


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_bound_that_is_not_positive_is_refused(bound: float) -> None:
    """A size for a senseless target is worse than none."""
    with pytest.raises(ConfigError, match="TPOT"):
        Goal(tpot_p95_s=bound)
    with pytest.raises(ConfigError, match="TTFT"):
        Goal(ttft_p95_s=bound)


def test_requests_above_the_kv_cache_are_infeasible() -> None:
    """Not left out of a plan that looks fast."""

    def requests() -> Iterable[TraceRequest]:
        return [TraceRequest(None, 16 * 200, 1), TraceRequest(None, 10, 1)]

    with pytest.raises(Infeasible, match="1 requests never fit the 200 blocks"):
        search(requests, make_space(), Goal(), Offline())
