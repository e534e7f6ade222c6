"""What is said of a plan: words, sensitivity, the page, the cluster file."""

from pathlib import Path
from typing import Any

import pytest

from corun_pd.config import load_cluster
from corun_pd.core import Role
from corun_pd.planner.deploy import cluster_config, write_cluster
from corun_pd.planner.goal import Bound, Goal
from corun_pd.planner.load import Load, Offline, Online
from corun_pd.planner.page import write_page
from corun_pd.planner.search import Plan, Search, search
from corun_pd.planner.sensitivity import Sensitivity, sensitivity
from corun_pd.planner.space import Space
from corun_pd.planner.traces import Fixed, Synthetic
from corun_pd.planner.words import explain
from tests.unit.planner.make import make_profile


def plans(
    prompt: int, output: int, load: Load | None = None, goal: Goal | None = None, **space: Any
) -> list[Plan]:
    """Plans of 60 equal requests; ten come in a second."""
    trace = Synthetic(60, Fixed(prompt), Fixed(output), rate_per_s=10)
    fields = {"gpus": 3, "profiles": (make_profile(),), "slots": (4,), "blocks": 500, "block_tokens": 16}
    found = Space(**fields | space)
    return search(lambda: trace, found, goal or Goal(), load or Offline(), Search(every=True))


def rows(plan: Plan, goal: Goal, load: Load, prompt: int = 90) -> dict[tuple[str, float], Sensitivity]:
    """The sensitivity table by assumption and factor."""
    trace = Synthetic(60, Fixed(prompt), Fixed(40), rate_per_s=10)
    return {(row.assumption, row.factor): row for row in sensitivity(lambda: trace, plan, goal, load)}


def apart(found: list[Plan], prefill: int) -> list[Plan]:
    """The plan with so many prefill instances first, the others after it."""
    first = next(plan for plan in found if plan.layout.prefill == prefill)
    return [first, *(plan for plan in found if plan is not first)]


def test_words_name_the_pool_that_limits() -> None:
    """Long prompts fill the prefill pool, long answers that of decode."""
    goal, load = Goal(), Offline()
    assert explain(apart(plans(100, 2), 1), goal, load)[0].startswith("The prefill pool limits (1 instance)")
    assert explain(apart(plans(2, 100), 2), goal, load)[0].startswith("The decode pool limits (1 instance)")


def test_words_name_no_pool_where_arrivals_leave_room() -> None:
    """A request every ten seconds keeps nothing busy."""
    load = Online(speed=0.01)
    words = explain(apart(plans(50, 10, load), 1), Goal(), load)
    assert words[0].startswith("No pool limits throughout")
    assert not any("left to win" in line for line in words)


def test_sensitivity_moves_with_what_limits_and_with_nothing_else() -> None:
    """Decode bounds this job: its cost counts nearly in full, prefill and transfers hardly."""
    best = apart(plans(20, 40), 1)[0]
    found = rows(best, Goal(), Offline(), prompt=20)
    assert ("request rate", 1.2) not in found
    assert found["decode cost", 1.2].makespan_ratio > 1.15
    assert found["decode cost", 0.8].makespan_ratio < 0.9
    assert found["output lengths", 1.2].makespan_ratio > 1.1
    assert found["prefill cost", 1.2].makespan_ratio < 1.1
    assert found["transfer cost", 1.2].makespan_ratio < 1.05


def test_sensitivity_tells_when_the_goal_would_be_missed() -> None:
    """A bound just above what the plan reaches holds for less load alone."""
    load = Online()
    best = plans(90, 40, load)[0]
    goal = Goal(targets=(Bound("TTFT", 95, best.outcome.ttft.p95 * 1.01),))
    found = rows(best, goal, load)
    assert found["request rate", 0.8].meets_goal
    assert not found["request rate", 1.2].meets_goal


def test_requests_that_grow_beyond_the_pool_miss_the_goal() -> None:
    """5 blocks of 26 tokens are just enough for 130."""
    found = rows(plans(90, 40, blocks=5, block_tokens=26)[0], Goal(), Offline())
    assert found["prompt lengths", 1.2].outcome.refused == 60
    assert not found["prompt lengths", 1.2].meets_goal


def test_scaled_costs_keep_their_measurement() -> None:
    """Times are taken so often; a link is as much slower."""
    profile = make_profile()
    scaled = profile.scaled(prefill=2, decode=3, transfer=4)
    assert scaled.prefill.alone_s(150) == pytest.approx(2 * profile.prefill.alone_s(150))
    assert scaled.decode_step(9).base_s == pytest.approx(3 * profile.decode_step(9).base_s)
    assert scaled.transfer.latency_s == pytest.approx(4 * profile.transfer.latency_s)
    assert scaled.transfer.bytes_per_s == pytest.approx(profile.transfer.bytes_per_s / 4)
    assert scaled.fingerprint == profile.fingerprint
    assert profile.scaled() == profile


@pytest.mark.parametrize("memory_ratio", [None, 0.7])
def test_cluster_file_is_what_up_reads(tmp_path: Path, memory_ratio: float | None) -> None:
    """With the plan's pools, shape and counts; no sequence is longer than the pool."""
    plan = apart(plans(90, 40), 2)[0]
    config = cluster_config(plan, tmp_path / "model", max_model_tokens=9000, memory_ratio=memory_ratio)
    write_cluster(config, tmp_path / "up.yaml", "a comment")
    found = load_cluster(tmp_path / "up.yaml")
    assert found == config
    assert {one.role: one.count for one in found.instances} == {Role.PREFILL: 2, Role.DECODE: 1}
    assert (found.engine.slots, found.engine.prefill.chunk_tokens, found.engine.block_tokens) == (4, 100, 16)
    assert found.engine.max_model_tokens == 8000
    assert found.engine.kv_cache_bytes == (None if memory_ratio else 500 * 16 * 1000)


def test_page_has_every_figure_and_escapes_what_it_is_given(tmp_path: Path) -> None:
    """One file with its figures inside."""
    pytest.importorskip("matplotlib")
    found = plans(90, 40)
    path = tmp_path / "plan.html"
    write_page(
        path,
        inputs=["a <trace>"],
        plans=found,
        table=["layout"],
        words=explain(found, Goal(), Offline()),
        rows=list(rows(found[0], Goal(), Offline()).values()),
    )
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "a &lt;trace&gt;" in page
    assert "decode cost" in page
    assert "nan" not in page.lower().replace("dominant-baseline", "")
