"""Comparing answers bit for bit."""

import math
import struct
from dataclasses import replace

import pytest

from corun_pd.bench.compare import compare, first_difference
from corun_pd.client import Choice, FinishReason, GenerationResult, Placement, TokenLogprobs, Usage


def make_result(**changes: object) -> GenerationResult:
    """An answer of two tokens with logprobs; `changes` are to its one sample."""
    choice = Choice(
        index=0,
        text="",
        token_ids=(5, 6),
        finish_reason=FinishReason.LENGTH,
        seed=1,
        logprobs=(TokenLogprobs(-0.5, 1, ((5, -0.5), (7, -1.5))), TokenLogprobs(-0.25, 1, ((6, -0.25),))),
    )
    return GenerationResult("a", (replace(choice, **changes),), Usage(3, 2), "f" * 64, 1)  # type: ignore[arg-type]


def next_float32(value: float) -> float:
    """The neighbour one unit in the last place away."""
    (bits,) = struct.unpack(">I", struct.pack(">f", value))
    (result,) = struct.unpack(">f", struct.pack(">I", bits + 1))
    return float(result)


def test_equal_answers_have_no_difference() -> None:
    """Names and placements are no part of the answer."""
    other = replace(make_result(placement=Placement("p", "d", 9)), generation_id="b")
    assert first_difference(0, make_result(), other) is None


@pytest.mark.parametrize(
    ("changes", "field", "position"),
    [
        ({"token_ids": (5, 8)}, "token_ids", 1),
        ({"token_ids": (5,)}, "token_ids", 1),
        ({"token_ids": (5, 6, 7)}, "token_ids", None),
        ({"finish_reason": FinishReason.STOP}, "finish_reason", None),
        ({"stop_reason": 6}, "stop_reason", None),
        ({"seed": 2}, "seed", None),
        ({"logprobs": None}, "logprobs", None),
        ({"logprobs": make_result().choices[0].logprobs[:1]}, "logprobs", None),  # type: ignore[index]
    ],
)
def test_each_field_of_a_sample_is_compared(
    changes: dict[str, object], field: str, position: int | None
) -> None:
    """The first field that differs is named, with the position in it."""
    difference = first_difference(3, make_result(), make_result(**changes))
    assert difference is not None
    assert (difference.request, difference.field, difference.position) == (3, field, position)


def test_one_bit_of_one_logprob_is_a_difference() -> None:
    """A neighbouring float32 prints alike and is found."""
    logprobs = make_result().choices[0].logprobs
    assert logprobs is not None
    nudged = (logprobs[0], replace(logprobs[1], sampled=next_float32(logprobs[1].sampled)))
    difference = first_difference(0, make_result(), make_result(logprobs=nudged))
    assert difference is not None
    assert (difference.field, difference.position) == ("logprobs", 1)


def test_rank_and_likeliest_tokens_are_compared() -> None:
    """A swap of two equally likely tokens is a difference."""
    entry = TokenLogprobs(-1.0, 1, ((1, -1.0), (2, -1.0)))
    one = make_result(logprobs=(entry, entry))
    for other in (replace(entry, top=entry.top[::-1]), replace(entry, rank=2)):
        assert first_difference(0, one, make_result(logprobs=(entry, other))) is not None


def test_zeros_differ_by_sign_and_nan_equals_itself() -> None:
    """Bits are compared, not numbers."""
    one, other, nan = (TokenLogprobs(value, 1) for value in (0.0, -0.0, math.nan))
    assert first_difference(0, make_result(logprobs=(one,)), make_result(logprobs=(other,))) is not None
    assert first_difference(0, make_result(logprobs=(nan,)), make_result(logprobs=(nan,))) is None


def test_usage_and_fingerprint_are_compared() -> None:
    """What the answer says of itself counts as well."""
    for change in ({"usage": Usage(3, 3)}, {"system_fingerprint": "0" * 64}, {"choices": ()}):
        assert first_difference(0, make_result(), replace(make_result(), **change)) is not None  # type: ignore[arg-type]


def test_comparison_counts_what_is_identical() -> None:
    """One of three requests differs."""
    good, bad = make_result(), make_result(token_ids=(1, 2))
    comparison = compare("batched", [good, good, good], [good, bad, good])
    assert (comparison.identical, comparison.count, comparison.is_identical) == (2, 3, False)
    assert "request 1" in str(comparison.differences[0])


def test_a_lost_answer_is_not_taken_for_an_equal_one() -> None:
    """Runs of different lengths cannot be compared."""
    with pytest.raises(ValueError, match="shorter"):
        compare("batched", [make_result(), make_result()], [make_result()])
