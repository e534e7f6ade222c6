"""No figure is NaN, infinite or negative, whatever the workload: idle hours, one row, all at one instant."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corun_pd.errors import ConfigError
from corun_pd.planner.goal import Goal
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.search import Search, search
from corun_pd.planner.sensitivity import sensitivity
from corun_pd.planner.simulator import simulate
from corun_pd.planner.space import Space
from corun_pd.planner.traces import TraceRequest
from tests.unit.planner.make import make_layout, make_profile

PACKED = make_profile(transfer={"latency_s": 0.0, "bytes_per_s": 1e12}, start_up_s=0.0)
ISOLATED = make_profile(
    prefill={"mode": "isolated", "chunk_tokens": 64, "prompts": [[8, 1e-9], [64, 0.3], [500, 2.0]]}
)

GAPS = st.sampled_from([0.0, 0.0, 1e-9, 0.4, 3.0, 36_000.0])
REQUESTS = st.lists(st.tuples(GAPS, st.integers(1, 700), st.integers(1, 90)), min_size=1, max_size=20)
LOADS = st.sampled_from([Offline(), Online(), Online(0.001), Online(1e6), ClosedLoop(1), ClosedLoop(1000)])


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a nested result, with its place."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from figures(getattr(value, field.name), f"{place}.{field.name}")
    elif isinstance(value, int | float):
        yield place, float(value)
    elif not isinstance(value, str):
        for at, part in enumerate(value):
            yield from figures(part, f"{place}[{at}]")


def trace(rows: list[tuple[float, int, int]]) -> list[TraceRequest]:
    """Requests of (gap, prompt, output)."""
    at_s, found = 0.0, []
    for gap, prompt, output in rows:
        at_s += gap
        found.append(TraceRequest(at_s, prompt, output))
    return found


@settings(deadline=None)
@given(REQUESTS, LOADS, st.sampled_from([PACKED, ISOLATED]), st.booleans(), st.integers(1, 6))
def test_figures_are_numbers(
    rows: list[tuple[float, int, int]], load: Load, profile: Any, is_apart: bool, slots: int
) -> None:
    """A pool of 30 blocks refuses the longest, so that a run of refusals alone is drawn too."""
    layout = make_layout(slots=slots, blocks=30, **({} if is_apart else {"colocated": 1}))
    outcome = simulate(trace(rows), layout, profile, load)
    found = list(figures(outcome, "outcome"))
    assert len(found) > 30
    for place, figure in [*found, ("rate", outcome.output_tokens_per_s)]:
        assert math.isfinite(figure), place
        assert figure >= 0, place
    assert outcome.requests + outcome.refused == len(rows)
    for use in (outcome.prefill, outcome.decode):
        assert max(use.busy_ratio, use.padding_ratio, use.use_ratio, *use.use_over_time, 0) <= 1 + 1e-9


@settings(deadline=None, max_examples=25)
@given(REQUESTS, LOADS)
def test_plans_and_their_sensitivity_are_numbers(rows: list[tuple[float, int, int]], load: Load) -> None:
    """With the bound below what was simulated."""
    requests = trace(rows)
    plans = search(lambda: requests, Space(2, (PACKED,), (4,), 1000, 16), Goal(), load, Search(every=True))
    for plan in plans:
        assert 0 <= plan.least_makespan_s <= plan.outcome.makespan_s + 1e-6
    for row in sensitivity(lambda: requests, plans[0], Goal(), load):
        assert math.isfinite(row.makespan_ratio)
        assert row.makespan_ratio >= 0


@pytest.mark.parametrize("row", [(0.0, 0, 5), (0.0, 5, 0), (0.0, 0, 0)])
def test_rows_of_no_tokens_are_refused_by_name(row: tuple[float, int, int]) -> None:
    """Readers drop or count them; whoever makes requests of their own is told."""
    with pytest.raises(ConfigError, match="request 0"):
        simulate(trace([row]), make_layout(), PACKED, Offline())
