"""The simulator: times by hand, and a reference that takes one step at a time."""

import itertools
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corun_pd.core import Edge
from corun_pd.engine.policy import PATIENCE, Candidate
from corun_pd.errors import ConfigError, SetupError
from corun_pd.planner.load import ClosedLoop, Load, Offline, Online
from corun_pd.planner.outcome import Outcome
from corun_pd.planner.simulator import simulate
from corun_pd.planner.traces import Fixed, LogNormal, Synthetic, TraceRequest, Uniform
from tests.unit.planner.make import make_layout, make_profile

Times = dict[int, list[tuple[Edge, float]]]


def run(
    *lengths: tuple[int, int], load: Load | None = None, profile: dict[str, Any] | None = None, **layout: int
) -> tuple[Outcome, Times]:
    """Requests of (prompt, output) tokens; what came of them, and each one's edges with their times."""
    times: Times = defaultdict(list)
    max_tokens = layout.pop("max_tokens", 0)
    outcome = simulate(
        [TraceRequest(float(at), *pair) for at, pair in enumerate(lengths)],
        make_layout(**layout),
        make_profile(**profile or {}),
        load or Offline(),
        max_tokens=max_tokens,
        observer=lambda edge, index, at_s: times[index].append((edge, at_s)),
    )
    return outcome, times


def test_request_apart_takes_prefill_transfer_and_decode() -> None:
    """1 s of prefill, 0.5 + 60 ms of transfer, 4 steps; the names are those of the cluster."""
    outcome, times = run((60, 5))
    assert [edge for edge, _ in times[0]] == [
        Edge.QUEUED,
        Edge.PREFILL,
        Edge.HANDED_OFF,
        Edge.DECODE,
        Edge.FINISHED,
    ]
    assert [at_s for _, at_s in times[0]] == pytest.approx([0, 0, 1.0, 1.56, 1.96])
    assert outcome.makespan_s == pytest.approx(1.96)
    assert outcome.ttft.most == pytest.approx(1.0)
    assert outcome.tpot.mean == pytest.approx(0.24)
    assert outcome.output_tokens_per_s == pytest.approx(5 / 1.96)
    assert outcome.start_up_s == 30.0


def test_prompts_share_a_packed_step_and_the_rest_is_padding() -> None:
    """60 + 40 fit 100 tokens, 30 is alone; the transfers share the link."""
    outcome, times = run((60, 5), (30, 5), (40, 5))
    handed_off = {index: dict(edges)[Edge.HANDED_OFF] for index, edges in times.items()}
    assert handed_off == {0: 1.0, 1: 1.0, 2: 2.0}
    assert outcome.prefill.padding_ratio == pytest.approx(1 - 130 / 200)
    assert dict(times[0])[Edge.DECODE] == pytest.approx(1.56)
    assert dict(times[1])[Edge.DECODE] == pytest.approx(1.66)  # pulled at 1.59, joins at the step's end


def test_isolated_prompts_take_turns_in_the_engines_chunks() -> None:
    """250 tokens are steps of 100, 100 and 50 whose times add up to the prompt's."""
    isolated = {"mode": "isolated", "chunk_tokens": 100, "prompts": [[1, 0.1], [100, 1.0], [300, 4.0]]}
    outcome, times = run((250, 2), (100, 2), profile={"prefill": isolated})
    assert dict(times[0])[Edge.HANDED_OFF] == pytest.approx(3.25)
    assert dict(times[1])[Edge.HANDED_OFF] == pytest.approx(4.25)
    assert outcome.prefill.padding_ratio == 0


def test_first_token_that_is_the_last_never_reaches_decode() -> None:
    """Its room on the decode instance is given back all the same."""
    outcome, times = run((60, 1), (60, 1), (60, 2), max_tokens=16, slots=1)
    assert [edge for edge, _ in times[0]] == [Edge.QUEUED, Edge.PREFILL, Edge.FINISHED]
    assert outcome.requests == 3
    assert outcome.tpot.count == 1


def test_room_is_reserved_for_what_clients_ask_and_not_for_what_they_get() -> None:
    """Four requests of 20 tokens run at once in 8 blocks; asking for 100 each, one by one."""
    _, together = run(*[(10, 10)] * 4, blocks=8, max_tokens=22)
    _, in_turn = run(*[(10, 10)] * 4, blocks=8, max_tokens=100)
    assert {dict(edges)[Edge.PREFILL] for edges in together.values()} == {0.0}
    ends = [dict(edges)[Edge.FINISHED] for edges in in_turn.values()]
    starts = [dict(edges)[Edge.PREFILL] for edges in in_turn.values()]
    assert starts[1:] == ends[:-1]


def test_request_that_no_instance_can_hold_is_refused_and_counted() -> None:
    """The rest is served; a prompt that fills the pool has no room for its first token."""
    outcome, times = run((10, 10), (16_000, 1), (15_000, 1001), (15_999, 1))
    assert (outcome.requests, outcome.refused) == (2, 2)
    assert [edge for edge, _ in times[1]] == [Edge.QUEUED, Edge.FAILED]


def test_closed_loop_keeps_so_many_in_flight() -> None:
    """The next comes in the moment in which one ends."""
    _, times = run(*[(50, 3 + at % 4) for at in range(12)], load=ClosedLoop(3))
    changes = sorted(
        (at_s, edge is Edge.QUEUED)
        for edges in times.values()
        for edge, at_s in edges
        if edge in (Edge.QUEUED, Edge.FINISHED)
    )
    in_flight, most = 0, 0
    for _, is_start in changes:
        in_flight += 1 if is_start else -1
        most = max(most, in_flight)
    assert most == 3
    assert sum(dict(edges)[Edge.QUEUED] == 0.0 for edges in times.values()) == 3


def test_online_requests_come_when_the_trace_says_or_faster() -> None:
    """One a second, and two."""
    for speed in (1.0, 2.0):
        _, times = run(*[(50, 3)] * 4, load=Online(speed))
        assert [dict(edges)[Edge.QUEUED] for edges in times.values()] == [at / speed for at in range(4)]


def test_volley_shares_a_prefill_step() -> None:
    """Requests of one moment are there before the step that the first of them starts."""
    requests = [TraceRequest(5.0, 25, 1)] * 4
    outcome = simulate(requests, make_layout(), make_profile(), Online())
    assert outcome.makespan_s == pytest.approx(1.0)


def test_trace_without_times_is_not_taken_online() -> None:
    """All at zero would be another load."""
    with pytest.raises(SetupError, match="no times"):
        simulate([TraceRequest(None, 1, 1)], make_layout(), make_profile(), Online())


@pytest.mark.parametrize(
    "counts", [{"prefill": 0}, {"decode": 0}, {"prefill": 1, "decode": 1, "colocated": 1}, {"slots": 0}]
)
def test_layout_that_serves_nothing_is_refused(counts: dict[str, int]) -> None:
    """As the cluster's configuration refuses it."""
    with pytest.raises(ConfigError, match="layout"):
        make_layout(**counts)


@pytest.mark.parametrize("layout", [{"prefill": 3, "decode": 2}, {"colocated": 3}])
@pytest.mark.parametrize("load", [Offline(), ClosedLoop(20), Online()])
@pytest.mark.parametrize("mode", ["packed", "isolated"])
def test_whole_workload_ends_and_adds_up(layout: dict[str, int], load: Load, mode: str) -> None:
    """Every request ends, in the order of its edges; pools are never used beyond what they have."""
    prefill = {
        "packed": {"mode": "packed", "chunk_tokens": 256, "full_step_s": 0.05, "context_pair_s": 1e-7},
        "isolated": {"mode": "isolated", "chunk_tokens": 256, "prompts": [[1, 0.01], [256, 0.05]]},
    }[mode]
    profile = make_profile(
        prefill=prefill, decode=[{"slots": 16, "base_s": 0.02, "kv_token_s": 1e-6}], start_up_s=0
    )
    trace = Synthetic(400, LogNormal(150, 1.0, 2000), Uniform(1, 60), rate_per_s=15)
    times: Times = defaultdict(list)
    outcomes = [
        simulate(
            trace,
            make_layout(slots=16, blocks=300, **layout),
            profile,
            load,
            max_tokens=64,
            observer=lambda edge, index, at_s: times[index].append((edge, at_s)),
        )
        for _ in range(2)
    ]
    outcome = outcomes[0]
    assert outcome == outcomes[1]
    assert outcome.requests == 400
    assert outcome.output_tokens == trace.report.output_tokens
    assert outcome.ttft.count == 400
    for index, edges in times.items():
        first = edges[: len(edges) // 2]
        assert [list(Edge).index(edge) for edge, _ in first] == sorted(
            list(Edge).index(edge) for edge, _ in first
        ), index
        assert [at_s for _, at_s in first] == sorted(at_s for _, at_s in first), index
    for pool in (outcome.prefill, outcome.decode):
        assert 0 < pool.use_ratio <= pool.busy_ratio <= 1 + 1e-9
        assert max(pool.use_over_time) <= 1 + 1e-9
    assert (outcome.prefill.padding_ratio > 0) == (mode == "packed")


Workload = list[tuple[int, int]]


def reference(
    requests: Workload, arrivals: list[float], slots: int, blocks: int, lookahead: int, profile: Any
) -> list[float]:
    """A router before one colocated engine that goes step by step, as its scheduler does."""
    policy, cost = profile.prefill.policy(), profile.decode_step(slots)
    block_need = [-(-(p + n) // 16) for p, n in requests]  # the router's
    engine_need = [-(-(p + n - 1) // 16) for p, n in requests]
    queue, waiting, running = list(range(len(requests))), list[int](), list[int]()
    computed, produced = [0] * len(requests), [0] * len(requests)
    now_s, put_off, ends = 0.0, 0, [0.0] * len(requests)

    def place(until_s: float) -> None:
        """What came to the router goes to the engine while there is room. The engine does not wait."""
        while queue and arrivals[queue[0]] <= until_s and len(waiting) + len(running) < slots + lookahead:
            if sum(block_need[r] for r in [queue[0], *waiting, *running]) > blocks:
                break
            waiting.append(queue.pop(0))

    while queue or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, arrivals[queue[0]])
            place(now_s)
        part = next((r for r in running if computed[r] < requests[r][0]), None)
        free = blocks - sum(engine_need[r] for r in running)
        shares = policy.next_step(
            None if part is None else Candidate(str(part), requests[part][0], computed[part], 0),
            (Candidate(str(r), requests[r][0], 0, engine_need[r]) for r in waiting),
            slots - len(running),
            free,
            PATIENCE - put_off if any(r != part for r in running) else 0,
        )
        put_off = put_off + 1 if waiting and not shares else 0
        if shares:
            pairs = sum(s.tokens * computed[int(s.key)] for s in shares)
            for share in shares:
                r = int(share.key)
                if r in waiting:
                    waiting.remove(r)
                    running.append(r)
                computed[r] += share.tokens
            now_s += profile.prefill.step_s(
                sum(s.tokens for s in shares), pairs, computed[int(shares[-1].key)]
            )
            ran = [int(s.key) for s in shares if computed[int(s.key)] == requests[int(s.key)][0]]
        else:
            ran = [r for r in running if r != part]
            assert ran
            now_s += cost.base_s + cost.kv_token_s * sum(requests[r][0] + produced[r] for r in ran)
        place(now_s)
        for r in ran:
            produced[r] += 1
            if produced[r] == requests[r][1]:
                running.remove(r)
                ends[r] = now_s
    return ends


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=25),
    st.lists(st.sampled_from([0.0, 0.0, 0.123, 1.234, 7.03]), min_size=25, max_size=25),
    st.integers(1, 6),
    st.integers(30, 80),
    st.integers(0, 8),
    st.sampled_from(["packed", "isolated"]),
)
def test_colocated_instance_does_what_a_scheduler_does_step_by_step(
    lengths: Workload, gaps: list[float], slots: int, blocks: int, lookahead: int, mode: str
) -> None:
    """Bulk advances and questions left out change nothing: patience, chunks, blocks and slots included."""
    prefill = {
        "packed": {"mode": "packed", "chunk_tokens": 100, "full_step_s": 0.7, "context_pair_s": 1e-4},
        "isolated": {"mode": "isolated", "chunk_tokens": 64, "prompts": [[8, 0.2], [64, 0.3], [500, 2.0]]},
    }[mode]
    decode = [
        {"slots": 1, "base_s": 0.1, "kv_token_s": 1e-5},
        {"slots": 6, "base_s": 0.15, "kv_token_s": 1e-5},
    ]
    profile = make_profile(prefill=prefill, decode=decode)
    arrivals = list(itertools.accumulate(gaps[1 : len(lengths)], initial=0.0))
    ends: dict[int, float] = {}
    simulate(
        [TraceRequest(at_s, *pair) for at_s, pair in zip(arrivals, lengths, strict=True)],
        make_layout(colocated=1, slots=slots, blocks=blocks, lookahead=lookahead),
        profile,
        Online(),
        observer=lambda edge, index, at_s: ends.update({index: at_s} if edge is Edge.FINISHED else {}),
    )
    expected = reference(lengths, arrivals, slots, blocks, lookahead, profile)
    assert [ends[index] for index in range(len(lengths))] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("mode", "prompt", "output", "steps", "padding"),
    [
        ("packed", 256, 64, 164, 0.1306),
        ("packed", 1024, 128, 404, 0.0723),
        ("packed", 4096, 128, 854, 0.0208),
        ("isolated", 256, 64, 426, 0.1225),
        ("isolated", 1024, 128, 554, 0.0723),
        ("isolated", 4096, 128, 854, 0.0208),
    ],
)
def test_steps_and_padding_are_those_that_a_real_engine_counted(
    mode: str, prompt: int, output: int, steps: int, padding: float
) -> None:
    """300 requests at once on one H200, N = 256, 2048 tokens a step (bench/results)."""
    prefill = {
        "packed": {"mode": "packed", "chunk_tokens": 2048, "full_step_s": 0.06},
        "isolated": {"mode": "isolated", "chunk_tokens": 2048, "prompts": [[1, 0.02], [2048, 0.06]]},
    }[mode]
    outcome = simulate(
        Synthetic(300, Fixed(prompt), Fixed(output)),
        make_layout(colocated=1, slots=256, blocks=43_000, lookahead=300),
        make_profile(prefill=prefill, decode=[{"slots": 256, "base_s": 0.02}]),
        Offline(),
    )
    tokens = 300 * (prompt + output - 1)
    rows = outcome.decode.steps * 256 + 300 * prompt / (1 - outcome.prefill.padding_ratio)
    assert outcome.prefill.steps + outcome.decode.steps == steps
    assert 1 - tokens / rows == pytest.approx(padding, abs=5e-5)


def test_more_instances_are_never_slower_on_a_long_job() -> None:
    """And two decode instances with one prefill instance wait for it."""
    trace = Synthetic(300, Fixed(80), Fixed(40))
    spans = [
        simulate(trace, make_layout(decode=count, slots=8), make_profile(), Offline()) for count in (1, 2, 4)
    ]
    assert spans[0].makespan_s >= spans[1].makespan_s >= spans[2].makespan_s
    assert spans[2].prefill.busy_ratio > 0.95
