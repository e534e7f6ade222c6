"""Which instance is picked: filter, score, pick."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.core import InstanceInfo, Role
from corun_pd.router.policy import Demand, Ledger, ever_fits, pick_decode, pick_prefill, slot_limit

INFO = InstanceInfo("i", Role.DECODE, "a:1", "f", {}, "m", 8, 100, 16, 4096, 2048, 1, 20, 512)


def ledger(**fields: int) -> Ledger:
    info = replace(INFO, **{key: fields.pop(key) for key in ("slots", "blocks") if key in fields})
    held = fields.pop("held", 0)
    return Ledger(info, blocks=held, **fields)


def test_decode_with_the_most_free_slots_wins() -> None:
    """KV room decides only between equals."""
    busy, free = ledger(legs=3), ledger(legs=2, held=50)
    assert pick_decode([busy, free], Demand(16, 16), 0) is free
    roomy = ledger(legs=2, held=10)
    assert pick_decode([free, roomy], Demand(16, 16), 0) is roomy


def test_decode_without_room_for_the_whole_answer_is_passed_over() -> None:
    """Prompt and max_tokens fit exactly, or the sample waits."""
    full = ledger(held=98)
    assert pick_decode([full], Demand(16, 16), 0) is full
    assert pick_decode([full], Demand(16, 17), 0) is None


@pytest.mark.parametrize(("lookahead", "limit"), [(None, 10), (0, 8), (3, 11)])
def test_lookahead_lets_a_few_samples_wait_at_the_instance(lookahead: int | None, limit: int) -> None:
    """A quarter of the slots unless configured."""
    assert slot_limit(8, lookahead) == limit
    assert pick_decode([ledger(legs=limit - 1)], Demand(1, 1), lookahead) is not None
    assert pick_decode([ledger(legs=limit)], Demand(1, 1), lookahead) is None


def test_prefill_with_the_least_prompt_work_wins() -> None:
    """However many prompts that is."""
    many_short, one_long = ledger(legs=9, prompt_tokens=90), ledger(legs=1, prompt_tokens=1000)
    assert pick_prefill([one_long, many_short], Demand(16, 16)) is many_short


def test_prefill_whose_handoffs_nobody_pulled_gets_no_more_prompts() -> None:
    """They pin its blocks; the one with more work and room is taken, and without it the sample waits."""
    pinned, working = ledger(held=100), ledger(held=10, prompt_tokens=5000)
    assert pick_prefill([pinned, working], Demand(16, 16)) is working
    assert pick_prefill([pinned], Demand(1, 16)) is None


def test_prefill_needs_room_for_the_prompt_alone() -> None:
    """The answer's KV is the decode instance's."""
    assert pick_prefill([ledger(held=99)], Demand(16, 4000)) is not None


def test_ever_fits_looks_at_idle_instances() -> None:
    """What is held now does not matter; the largest pool does."""
    small, large = replace(INFO, blocks=2), replace(INFO, blocks=4)
    assert ever_fits([small, large], 64)
    assert not ever_fits([small, large], 65)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 100)), max_size=6), st.integers(1, 600))
def test_pick_is_a_best_one_of_those_that_fit(states: list[tuple[int, int]], tokens: int) -> None:
    """For any loads."""
    ledgers = [ledger(legs=legs, held=held) for legs, held in states]
    demand = Demand(tokens, 1)
    picked = pick_decode(ledgers, demand, 2)
    fitting = [x for x in ledgers if x.legs < 10 and x.free_blocks >= INFO.blocks_for(tokens + 1)]
    if picked is None:
        assert not fitting
    else:
        assert picked in fitting
        assert picked.legs == min(x.legs for x in fitting)
