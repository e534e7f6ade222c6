"""Instances that share a device, samples that share a prompt, instances that fail."""

from collections import defaultdict
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corun_pd.core import Edge
from corun_pd.errors import ConfigError
from corun_pd.planner.failures import Failures
from corun_pd.planner.instances.pace import Pace
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.outcome import Outcome
from corun_pd.planner.simulator import Overtime, simulate
from corun_pd.planner.traces import LogNormal, Synthetic, TraceRequest, Uniform
from tests.unit.planner.make import make_layout, make_profile

Times = dict[int, list[tuple[Edge, float]]]

TRACE = Synthetic(200, LogNormal(60, 1.0, 400), Uniform(1, 40), rate_per_s=3)
LAYOUTS = [{"prefill": 2, "decode": 2}, {"colocated": 2}]


def run(
    requests: list[TraceRequest],
    *,
    load: Load | None = None,
    failures: Failures | None = None,
    profile: dict[str, Any] | None = None,
    **layout: int,
) -> tuple[Outcome, Times]:
    """What came of requests, and each one's edges with their times."""
    times: Times = defaultdict(list)
    outcome = simulate(
        requests,
        make_layout(**layout),
        make_profile(**profile or {}),
        load or Offline(),
        failures=failures,
        observer=lambda edge, index, at_s: times[index].append((edge, at_s)),
    )
    return outcome, times


def group(*outputs: int, prompt: int = 60, number: int = 0) -> list[TraceRequest]:
    """Samples of one prompt."""
    return [TraceRequest(0.0, prompt, output, group=number) for output in outputs]


def edge_times(times: Times, edge: Edge) -> list[float]:
    """When each sample passed it, by index."""
    return [dict(edges)[edge] for _, edges in sorted(times.items())]


def test_pace_slows_own_time_from_the_change_on() -> None:
    """Two seconds at full pace, then half as fast, then full again."""
    pace = Pace()
    assert pace.own_s(1.7) == pace.at_s(1.7) == 1.7
    assert pace.change(2.0, 2.0)
    assert not pace.change(2.0, 3.0)
    assert (pace.own_s(4.0), pace.at_s(3.0)) == (3.0, 4.0)
    assert pace.change(1.0, 6.0)
    assert (pace.own_s(7.0), pace.at_s(5.0)) == (5.0, 7.0)


def test_neighbour_at_work_slows_a_step_for_as_long_as_it_works() -> None:
    """A second prompt starts at 1 s and a decode of 4 steps at 1.56 s; both slow down while both work."""
    profile = {"beside": {"prefill": 1.5, "decode": 2.0}}
    requests = [TraceRequest(0.0, 60, 5), TraceRequest(0.0, 100, 1)]
    _, times = run(requests, profile=profile, per_device=2)
    # Prefill has 0.44 s left at 1.56 s, which take 0.66 s; the decode needs 0.8 s for its 0.4 s until 2.36 s.
    assert dict(times[1])[Edge.FINISHED] == pytest.approx(2.22)
    # By then it has done 0.33 s of 0.4 s; the rest is alone.
    assert dict(times[0])[Edge.FINISHED] == pytest.approx(2.22 + 0.07)
    _, apart = run(requests, profile=profile)
    assert dict(apart[1])[Edge.FINISHED] == pytest.approx(2.0)
    assert dict(apart[0])[Edge.FINISHED] == pytest.approx(1.96)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("load", [Offline(), ClosedLoop(9), Online()])
def test_neighbours_that_do_not_slow_each_other_change_nothing(layout: dict[str, int], load: Load) -> None:
    """A device of slowness 1 gives the figures of devices apart, and a slower one a longer job."""
    requests = list(TRACE)
    spans = []
    for slowness in (1.0, 1.7):
        profile = {"beside": {"prefill": slowness, "decode": slowness}}
        spans.append(run(requests, load=load, profile=profile, per_device=2, **layout))
    assert spans[0] == run(requests, load=load, **layout)
    assert spans[1][0].makespan_s > spans[0][0].makespan_s
    assert spans[1][0].requests == 200


def test_shared_device_needs_a_profile_that_was_measured_so() -> None:
    """No guess."""
    with pytest.raises(ConfigError, match="was not measured"):
        run([TraceRequest(0.0, 10, 2)], per_device=2)


def test_prompt_of_several_samples_is_computed_once() -> None:
    """All have their first tokens with its end, and pull its KV cache one after the other on the link."""
    outcome, times = run(group(5, 5, 9), slots=4)
    assert outcome.prefill.steps == 1
    assert edge_times(times, Edge.HANDED_OFF) == [1.0] * 3
    assert edge_times(times, Edge.DECODE) == pytest.approx([1.56, 1.66, 1.76])
    assert outcome.ttft.most == pytest.approx(1.0)
    assert outcome.output_tokens == 19


def test_colocated_engine_computes_the_prompt_of_every_sample() -> None:
    """As the cluster does."""
    outcome, _ = run(group(5, 5, 5), colocated=1)
    assert outcome.prefill.steps == 3  # of 100 tokens; 60 and 60 do not share one


def test_samples_beyond_what_the_fleet_holds_come_in_parts() -> None:
    """Two slots: the prompt is computed for two of five, again for two, and for the last."""
    outcome, times = run(group(5, 5, 5, 5, 5), slots=2, lookahead=0)
    assert outcome.prefill.steps == 3
    assert outcome.requests == 5
    starts = edge_times(times, Edge.PREFILL)
    assert starts[0] == starts[1] == 0.0
    assert starts[1] < starts[2] == starts[3] < starts[4]


def test_blocks_of_a_shared_prompt_stay_until_they_are_pulled() -> None:
    """It takes 39 of 50; a prompt of 12 starts in the moment in which both samples have been pulled."""
    requests = [*group(30, 30, prompt=16 * 39), TraceRequest(0.0, 16 * 12, 3)]
    _, times = run(requests, slots=2, blocks=50, decode=4)
    assert edge_times(times, Edge.DECODE)[:2] == pytest.approx([7.0 + 0.5 + 0.624] * 2)
    assert edge_times(times, Edge.PREFILL)[2] == edge_times(times, Edge.DECODE)[0]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 200), st.integers(1, 30)), max_size=12))
@settings(deadline=None)
def test_samples_all_end_whatever_their_groups(groups: list[tuple[int, int, int]]) -> None:
    """With few slots and blocks, offline and in a closed loop."""
    requests = [
        TraceRequest(None, prompt, output, group=number)
        for number, (count, prompt, output) in enumerate(groups)
        for _ in range(count)
    ]
    for load in (Offline(), ClosedLoop(4)):
        outcome, _ = run(requests, load=load, slots=3, blocks=50, decode=2, prefill=1)
        assert outcome.requests == len(requests)
        assert outcome.output_tokens == sum(request.output_tokens for request in requests)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("load", [Offline(), ClosedLoop(20), Online()])
def test_failures_that_never_come_change_nothing(layout: dict[str, int], load: Load) -> None:
    """A mean of a million years gives the same figures in every bit."""
    requests = list(TRACE)
    assert run(requests, load=load, failures=Failures(3e13, 1.0), **layout) == run(
        requests, load=load, **layout
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("load", [Offline(), ClosedLoop(20), Online()])
def test_more_failures_make_a_longer_job(layout: dict[str, int], load: Load) -> None:
    """In the mean over seeds; every request ends with all its tokens, and is lost a whole number of times."""
    requests = list(TRACE)[:100]
    means = []
    for mean_s in (1e9, 60.0, 20.0):
        outcomes = [
            run(requests, load=load, failures=Failures(mean_s, 5.0, seed), **layout)[0] for seed in range(5)
        ]
        assert all(outcome.requests == 100 for outcome in outcomes)
        assert len({outcome.output_tokens for outcome in outcomes}) == 1
        assert all(outcome.ttft.count == 100 for outcome in outcomes)
        means.append(
            (fmean(o.makespan_s for o in outcomes), sum(o.failures for o in outcomes)),
        )
    assert [count for _, count in means] == sorted(count for _, count in means)
    assert means[0][1] == 0 < means[1][1]
    assert means[0][0] < means[1][0] < means[2][0]


def make_failures(*lives_s: float, restart_s: float = 10.0) -> Failures:
    """Failures of the first instance after these lives; others live long."""

    class Draws:
        def __init__(self, instance: int) -> None:
            self._lives = list(lives_s) if instance == 0 else []

        def expovariate(self, _: float) -> float:
            return self._lives.pop(0) if self._lives else 1e12

    class Fixed(Failures):
        def draws(self, instance: int) -> Any:
            return Draws(instance)

    return Fixed(1.0, restart_s)


def test_sample_of_a_failed_prefill_instance_runs_again_from_its_prompt() -> None:
    """Lost at 0.5 s of 1 s; in line again after the router's pause, started when the instance is back."""
    outcome, times = run([TraceRequest(0.0, 60, 5)], failures=make_failures(0.5))
    assert [edge for edge, _ in times[0]] == [
        Edge.QUEUED,
        Edge.PREFILL,
        Edge.REPLAYED,
        Edge.PREFILL,
        Edge.HANDED_OFF,
        Edge.DECODE,
        Edge.FINISHED,
    ]
    assert dict(times[0])[Edge.PREFILL] == pytest.approx(10.5)
    assert outcome.makespan_s == pytest.approx(10.5 + 1.96)
    assert (outcome.failures, outcome.replays) == (1, 1)


def test_reader_of_a_replayed_sample_has_its_first_token_from_the_first_run() -> None:
    """The colocated instance fails in its second decode step; TTFT is the first run's."""
    outcome, _ = run([TraceRequest(0.0, 60, 5)], failures=make_failures(1.15), colocated=1)
    assert outcome.ttft.most == pytest.approx(1.0)
    assert outcome.makespan_s == pytest.approx(11.15 + 1.0 + 0.4)
    assert outcome.tpot.most == pytest.approx((11.15 + 1.4 - 1.0) / 4)


def test_failed_prefill_instance_takes_handoffs_that_were_not_pulled_and_no_rows() -> None:
    """At 1.7 s one of two samples is a row and goes on; the other's pull of a long prompt is lost."""
    profile = {"transfer": {"latency_s": 0.5, "bytes_per_s": 1e5}}
    requests = [TraceRequest(0.0, 10, 9), TraceRequest(0.0, 90, 3)]
    outcome, times = run(requests, failures=make_failures(1.7), profile=profile)
    assert dict(times[0])[Edge.FINISHED] == pytest.approx(1.6 + 0.8)
    assert [edge for edge, _ in times[1]].count(Edge.PREFILL) == 2
    assert outcome.replays == 1


def test_instances_that_fail_before_any_sample_ends_are_told() -> None:
    """And not simulated for ever."""
    with pytest.raises(ConfigError, match="fail too often"):
        run([TraceRequest(0.0, 100, 50)], failures=Failures(0.01, 0.0), colocated=1)


@pytest.mark.parametrize(("mean_s", "restart_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (float("nan"), 0)])
def test_failures_without_sense_are_refused(mean_s: float, restart_s: float) -> None:
    """By name."""
    with pytest.raises(ConfigError, match="failures"):
        Failures(mean_s, restart_s)


@pytest.mark.parametrize("failures", [None, Failures(30.0, 1.0)])
def test_simulation_past_its_time_ends_there(failures: Failures | None) -> None:
    """And one that needs just that long does not."""
    requests = list(TRACE)
    profile, layout = make_profile(), make_layout(prefill=2, decode=2)
    whole = simulate(requests, layout, profile, Offline(), failures=failures)
    assert (
        simulate(requests, layout, profile, Offline(), failures=failures, until_s=whole.makespan_s) == whole
    )
    with pytest.raises(Overtime):
        simulate(
            requests, layout, profile, Offline(), failures=failures, until_s=whole.makespan_s * (1 - 1e-9)
        )
