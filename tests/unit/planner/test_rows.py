"""Decode rows and timelines: bulk advances against one step at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.planner.cost import StepCost
from corun_pd.planner.instances.rows import Rows
from corun_pd.planner.job import Job
from corun_pd.planner.timeline import Timeline

#: (prompt, output) of rows.
JOBS = st.lists(st.tuples(st.integers(1, 5000), st.integers(2, 300)), min_size=1, max_size=12)


def make_rows(jobs: list[tuple[int, int]], cost: StepCost, timeline: Timeline) -> Rows:
    rows = Rows(cost, timeline)
    for index, (prompt, output) in enumerate(jobs):
        rows.join(Job(index, 0.0, prompt, output, 0))
    return rows


@given(JOBS, st.sampled_from([0.0, 1e-6, 3e-5]))
def test_bulk_steps_take_what_single_steps_take(jobs: list[tuple[int, int]], slope: float) -> None:
    """The same rows end after the same steps at the same times, and the KV tokens of all are given back."""
    kv = [prompt + 1 for prompt, _ in jobs]
    left = [output - 1 for _, output in jobs]
    now_s, steps, expected = 0.0, 0, {}
    while any(left):
        now_s += 0.02 + slope * sum(k for k, n in zip(kv, left, strict=True) if n)
        steps += 1
        for at in range(len(jobs)):
            if left[at]:
                kv[at] += 1
                left[at] -= 1
                if not left[at]:
                    expected[at] = (steps, now_s)
    timeline = Timeline()
    rows = make_rows(jobs, StepCost(0.02, slope), timeline)
    found = {}
    while rows:
        k = rows.steps_to_end
        end_s = rows.now_s + rows.duration_s(k)
        rows.advance(k, end_s, end_s)
        found |= {job.index: (rows.steps, rows.now_s) for job in rows.pop_ended()}
    assert {at: step for at, (step, _) in found.items()} == {at: step for at, (step, _) in expected.items()}
    for at, (_, time_s) in found.items():
        assert time_s == pytest.approx(expected[at][1], rel=1e-9)
    assert rows.duration_s(1) == 0.02
    assert rows.row_steps == sum(output - 1 for _, output in jobs)


@given(JOBS, st.sampled_from([0.0, 1e-6, 1e-4]), st.floats(0, 50))
def test_border_is_the_first_end_of_a_step_that_is_not_before(
    jobs: list[tuple[int, int]], slope: float, at_s: float
) -> None:
    """The quadratic is solved to the very step."""
    rows = make_rows(jobs, StepCost(0.02, slope), Timeline())
    steps = rows.steps_until(at_s)
    assert rows.duration_s(steps) >= at_s
    assert steps == 0 or rows.duration_s(steps - 1) < at_s


@given(st.lists(st.tuples(st.floats(0, 3000), st.floats(0, 800), st.floats(0, 4)), max_size=30))
def test_timeline_keeps_every_amount_however_wide_its_bins_get(
    spans: list[tuple[float, float, float]],
) -> None:
    """Ratios over all bins give the whole back."""
    timeline = Timeline()
    for start_s, span_s, rate in spans:
        timeline.add(start_s, start_s + span_s, rate)
    total = sum(span_s * rate for _, span_s, rate in spans)
    end_s = max((start_s + span_s for start_s, span_s, _ in spans), default=0.0)
    ratios = timeline.ratios(4.0, end_s)
    widths = [min(timeline.bin_s, end_s - at * timeline.bin_s) for at in range(len(ratios))]
    assert timeline.total == pytest.approx(total)
    assert 4 * sum(r * w for r, w in zip(ratios, widths, strict=True)) == pytest.approx(total, abs=1e-6)
