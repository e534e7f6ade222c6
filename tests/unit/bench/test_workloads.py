"""Workloads by name or file."""

import pytest

from corun_pd.bench.workloads import make_engine_requests, mixed_requests, parse_workloads, stand_in
from corun_pd.errors import ConfigError


def test_names_counts_and_lengths_are_read() -> None:
    """A count after the name goes before the common one."""
    first, second = parse_workloads("256/64:3, 1000/7", 5, 8192)
    assert (first.name, first.lengths) == ("256/64", ((256, 64),) * 3)
    assert (second.name, second.lengths) == ("1000/7", ((1000, 7),) * 5)


@pytest.mark.parametrize(
    ("text", "named"),
    [("256", "256"), ("foo/7", "foo/7"), ("256/0", "256/0"), ("8/8:x", "'x'"), ("9/9:0", "'0'")],
)
def test_what_is_no_workload_is_named(text: str, named: str) -> None:
    """The message holds the part that is wrong."""
    with pytest.raises(ConfigError, match=named):
        parse_workloads(text, 5, 8192)


def test_a_fixed_workload_above_the_models_limit_is_refused() -> None:
    """It would fail request by request."""
    with pytest.raises(ConfigError, match="more than 300 tokens"):
        parse_workloads("256/64", 5, 300)


def test_without_its_file_a_workload_is_a_stand_in_by_name() -> None:
    """No table shows drawn lengths under the name of the published ones."""
    (found,) = parse_workloads("burstgpt", 50, 512)
    assert found.name == "burstgpt-stand-in"
    assert len(found.lengths) == 50
    assert all(prompt >= 1 and output >= 1 and prompt + output <= 512 for prompt, output in found.lengths)


def test_a_files_lengths_are_taken_in_order_and_cut_to_the_limit() -> None:
    """The sequence fits, and neither prompt nor output vanishes."""
    files = {"burstgpt": [(10, 20), (900, 30), (5, 900), (7, 7)]}
    (found,) = parse_workloads("burstgpt", 3, 100, files)
    assert (found.name, found.lengths) == ("burstgpt", ((10, 20), (70, 30), (5, 50)))


def test_the_stand_in_can_be_asked_for_beside_the_file() -> None:
    """Its lengths are not the file's."""
    (found,) = parse_workloads("burstgpt-stand-in", 3, 100, {"burstgpt": [(1, 1)] * 3})
    assert found.lengths != ((1, 1),) * 3


def test_a_file_with_too_few_requests_is_refused() -> None:
    """Fewer requests than asked for would be another workload."""
    with pytest.raises(ConfigError, match="5 requests of 1 in the file"):
        parse_workloads("blazedit", 5, 100, {"blazedit": [(1, 1)]})


def test_stand_ins_are_the_same_in_every_process() -> None:
    """Modes run in processes of their own and must get equal work."""
    assert stand_in("blazedit", 20) == stand_in("blazedit", 20)
    assert stand_in("blazedit", 20) != stand_in("blazedit", 20, seed=1)


def test_blazedit_is_longer_both_ways_than_burstgpt() -> None:
    """As in the paper's Fig. 7, at the median."""
    medians = {
        name: [sorted(one)[100] for one in zip(*stand_in(name, 200), strict=True)]
        for name in ("burstgpt", "blazedit")
    }
    assert all(long > 2 * short for short, long in zip(medians["burstgpt"], medians["blazedit"], strict=True))


def test_requests_have_the_lengths_and_run_to_their_end() -> None:
    """No end-of-sequence token may shorten a mode's work."""
    requests = make_engine_requests([(5, 3), (2, 9)], vocabulary=50)
    assert [(len(r.prompt), r.sampling.max_tokens) for r in requests] == [(5, 3), (2, 9)]
    assert all(r.sampling.ignore_eos and max(r.prompt) < 50 for r in requests)


def test_mixed_requests_hold_the_borders_of_blocks_and_chunks_and_every_sampling() -> None:
    """Where a difference would show."""
    requests = mixed_requests(80, chunk=64, block=16, vocabulary=50, longest=300, output=8)
    lengths = [len(request.prompt) for request in requests]
    assert {1, 2, 3, 15, 16, 17, 63, 64, 65, 66, 129} <= set(lengths)
    assert len(requests) == 80
    assert max(lengths) <= 300
    drawn = {(r.sampling.temperature, r.sampling.top_p, r.sampling.top_k) for r in requests}
    assert drawn == {(t, p, k) for t in (0.0, 0.6, 1.0) for p in (1.0, 0.9) for k in (0, 50)}
    assert {r.sampling.logprobs for r in requests} == {0, 5}
