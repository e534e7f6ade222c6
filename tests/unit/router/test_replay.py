"""A replay gives what its reader lacks, and nothing else passes."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.core import FinishReason, TokenLogprobs
from corun_pd.errors import (
    ContractBroken,
    CorunError,
    EngineFailed,
    HandoffRejected,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from corun_pd.router.legs import LegTokens
from corun_pd.router.replay import Transcript, is_fault


def tokens(ids: Sequence[int], *, last: bool = False, shift: float = 0.0) -> LegTokens:
    """With a logprob for each that tells it apart."""
    logprobs = [TokenLogprobs(sampled=-float(id_) - shift, rank=1, top=()) for id_ in ids]
    return LegTokens(list(ids), logprobs, FinishReason.LENGTH if last else None)


def pieces(ids: Sequence[int], borders: Sequence[int]) -> list[LegTokens]:
    """The ids cut at the borders; the last piece has the end."""
    cuts = [0, *sorted(min(border, len(ids)) for border in borders), len(ids)]
    found = [tokens(ids[a:b]) for a, b in itertools.pairwise(cuts)]
    return [*found[:-1], tokens(ids[cuts[-2] :], last=True)]


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    runs=st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=5), st.integers(0, 6)), max_size=3),
    last=st.lists(st.integers(0, 30), max_size=5),
)
def test_reader_gets_each_token_once(
    ids: list[int], runs: list[tuple[list[int], int]], last: list[int]
) -> None:
    """Runs that are cut off anywhere and come in any pieces, then one that ends."""
    transcript = Transcript()
    got: list[LegTokens] = []
    for borders, count in runs:
        got += [transcript.fresh(piece) for piece in pieces(ids, borders)[:-1][:count]]
        transcript.start_over()
    got += [transcript.fresh(piece) for piece in pieces(ids, last)]
    assert [id_ for piece in got for id_ in piece.token_ids] == ids
    assert [one.sampled for piece in got for one in piece.logprobs] == [-float(id_) for id_ in ids]
    assert [piece.finish for piece in got if piece.finish] == [FinishReason.LENGTH]
    assert transcript.replays == len(runs)


@pytest.mark.parametrize(
    ("again", "problem"),
    [
        (tokens([1, 2, 4, 5]), "token 2 is 4, not 3"),
        (tokens([1, 2, 3], shift=1e-7), "the logprobs of token 0 are"),
        (tokens([1, 2], last=True), "it ended after 2 tokens of 3"),
    ],
    ids=["token", "logprobs", "end"],
)
def test_replay_that_differs_breaks_the_contract(again: LegTokens, problem: str) -> None:
    transcript = Transcript()
    transcript.fresh(tokens([1, 2, 3]))
    transcript.start_over()
    with pytest.raises(ContractBroken, match=problem):
        transcript.fresh(again)


def test_prompt_logprobs_are_given_once() -> None:
    scored = [TokenLogprobs(sampled=-1.0, rank=1, top=())]
    first = LegTokens([1], prompt_logprobs=scored)
    transcript = Transcript()
    assert transcript.fresh(first).prompt_logprobs == scored
    transcript.start_over()
    assert transcript.fresh(first) == LegTokens([])


@pytest.mark.parametrize(
    ("error", "replayed"),
    [
        (Unavailable("instance d was lost", instance_id="d"), True),
        (Unavailable("p0 is shutting down"), True),
        (Unavailable("no decode instance has joined", role="decode"), False),
        (HandoffRejected("used before"), True),
        (EngineFailed("out of memory"), True),
        (InvalidRequest("prompt", "is empty"), False),
        (Overloaded("full", 1.0), False),
        (ContractBroken("other tokens"), False),
    ],
)
def test_only_faults_of_instances_are_replayed(error: CorunError, replayed: bool) -> None:
    assert is_fault(error) is replayed
