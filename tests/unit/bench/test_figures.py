"""Figures of a run, against numbers worked out by hand."""

import pytest

from corun_pd.bench import figures
from corun_pd.bench.records import Record, Run
from corun_pd.core import InstanceLoad


def make_record(submitted_s: float, first_s: float, last_s: float, tokens: int) -> Record:
    return Record(tuple(range(tokens)), (), "length", submitted_s, first_s, last_s)


def make_run(
    records: list[Record],
    wall_s: float,
    timeline: list[tuple[float, int]] = [],  # noqa: B006 - never changed
    firsts: list[int] = [],  # noqa: B006
    after: InstanceLoad = InstanceLoad(),  # noqa: B008
) -> Run:
    return Run(tuple(records), wall_s, InstanceLoad(), after, tuple(timeline), tuple(firsts))


def test_rates_are_tokens_over_the_wall_time() -> None:
    """Output alone, and with the prompts."""
    run = make_run([make_record(0, 1, 2, 6), make_record(0, 1, 4, 4)], 4.0, after=InstanceLoad(steps=9))
    found = figures.rates(run, prompt_tokens=30)
    assert (found["output_tokens_per_s"], found["total_tokens_per_s"]) == (2.5, 10.0)
    assert (found["requests"], found["steps"], found["output_tokens"]) == (2, 9, 10)


def test_ttft_counts_from_submission_and_tpot_between_tokens() -> None:
    """A request of one token has no TPOT."""
    run = make_run([make_record(1, 3, 5, 5), make_record(0, 1, 1, 1)], 5.0)
    found = figures.latencies(run)
    assert (found["ttft_mean_s"], found["ttft_p99_s"]) == (1.5, 2)
    assert found["tpot_mean_s"] == found["tpot_p50_s"] == 0.5
    assert found["ttft_s"] == sorted(found["ttft_s"])  # type: ignore[call-overload]
    assert len(found["tpot_s"]) == figures.POINTS  # type: ignore[arg-type]


def test_answers_of_one_token_alone_have_a_tpot_of_zero() -> None:
    """There is nothing between tokens to measure."""
    assert figures.latencies(make_run([make_record(0, 1, 1, 1)], 1.0))["tpot_mean_s"] == 0.0


def test_a_decode_step_is_between_two_steps_without_first_tokens() -> None:
    """Steps with first tokens, and narrow ones, are not counted."""
    timeline = [(1.0, 2), (5.0, 4), (5.5, 4), (6.5, 4), (6.6, 2), (9.0, 1), (9.9, 4), (10.0, 4)]
    firsts = [2, 2, 0, 0, 0, 0, 1, 0]
    found = figures.decode_steps(make_run([make_record(0, 1, 2, 2)], 10.0, timeline, firsts))
    assert found == figures.DecodeSteps(count=1, rows=4, step_s=1.0)


def test_a_run_without_two_decode_steps_in_a_row_has_no_decode_step() -> None:
    """None is not zero."""
    run = make_run([make_record(0, 1, 2, 2)], 3.0, [(1.0, 1), (2.0, 1)], [1, 0])
    assert figures.decode_steps(run) is None


def test_padding_is_told_apart_by_kind_of_step() -> None:
    """Two decode steps of 8 rows with 3 and 5 tokens; the rest of 40 rows is prefill."""
    after = InstanceLoad(rows=40, padding_rows=14)
    run = make_run([make_record(0, 1, 2, 2)], 3.0, [(1, 1), (2, 3), (3, 5)], [1, 0, 0], after)
    found = figures.padding(run, 8, is_fixed=True)
    assert found["padding_ratio"] == 14 / 40
    assert found["decode_padding_ratio"] == 8 / 16
    assert found["prefill_padding_ratio"] == 6 / 24


def test_decode_of_any_width_has_no_padded_rows() -> None:
    """vLLM's own scheduling."""
    run = make_run([make_record(0, 1, 2, 2)], 3.0, [(2, 3)], [0], InstanceLoad(rows=3))
    assert figures.padding(run, 8, is_fixed=False)["decode_padding_ratio"] == 0.0


def test_a_timeline_keeps_every_token() -> None:
    """Bins sum to the prompts' tokens and to the decode steps' tokens; a prompt counts at its first token."""
    records = [make_record(0, 1.0, 9.0, 3), make_record(0, 6.0, 10.0, 2)]
    run = make_run(records, 10.0, [(1.0, 1), (6.0, 2), (9.0, 1), (10.0, 1)], [1, 1, 0, 0])
    found = figures.timeline(run, [100, 50], bins=10)
    prefill, decode, running = (found[f] for f in ("prefill_tokens_per_s", "decode_tokens_per_s", "running"))
    assert prefill == [0, 100, 0, 0, 0, 0, 50, 0, 0, 0]
    assert sum(decode) * 1.0 == 3  # type: ignore[call-overload]
    assert running == pytest.approx([0, 1, 1, 1, 1, 1, 2, 2, 2, 1])
    assert (found["prefill_done_s"], found["done_s"]) == (6.0, 10.0)


def test_the_aggregate_is_all_tokens_over_all_time() -> None:
    """The mean of the rates would be 6."""
    assert figures.aggregate([(10.0, 1.0), (2.0, 3.0)]) == 4.0
