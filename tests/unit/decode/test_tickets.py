"""Which KV handoffs a decode instance takes."""

import time
from dataclasses import replace
from typing import Any

import pytest

from corun_pd.contract import Contract
from corun_pd.core import FirstToken, KvHandoff, RngState, SamplingParams, prompt_digest
from corun_pd.decode import tickets as tickets_module
from corun_pd.decode.tickets import Tickets
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import HandoffRejected

PROMPT = (1, 2, 3)
CONTRACT = Contract({"model": "m"})
INFO = EngineInfo(CONTRACT, "m", 8, 100, 16, 512, 64, 1024, 20, 512, "scheme-1")
SAMPLING = SamplingParams(max_tokens=4, seed=11)
FIRST = FirstToken(9, RngState("scheme-1", seed=11, step=1))
HANDOFF = KvHandoff(
    "h", "e", "host", 1, ((0,),), 3, prompt_digest(PROMPT), CONTRACT.fingerprint, lease_s=60.0
)


def make_first(**rng: Any) -> FirstToken:
    return replace(FIRST, rng=replace(FIRST.rng, **rng))


def test_a_good_ticket_is_good_once() -> None:
    """A second use could read blocks that hold another prompt by now."""
    tickets = Tickets(INFO)
    tickets.punch(HANDOFF, FIRST, PROMPT, SAMPLING)
    with pytest.raises(HandoffRejected, match="used before"):
        tickets.punch(HANDOFF, FIRST, PROMPT, SAMPLING)


def test_a_ticket_of_the_same_name_from_another_engine_is_another_ticket() -> None:
    """Names are the prefill engine's own."""
    tickets = Tickets(INFO)
    tickets.punch(HANDOFF, FIRST, PROMPT, SAMPLING)
    tickets.punch(replace(HANDOFF, engine_id="other"), FIRST, PROMPT, SAMPLING)


@pytest.mark.parametrize(
    ("handoff", "first", "problem"),
    [
        (replace(HANDOFF, handoff_id=""), FIRST, "no ticket"),
        (replace(HANDOFF, engine_id=""), FIRST, "no engine"),
        (replace(HANDOFF, fingerprint="0"), FIRST, "contract 0"),
        (replace(HANDOFF, tensor_parallel_size=4), FIRST, "on 4 tensor-parallel ranks; this engine has 1"),
        (replace(HANDOFF, token_count=2), FIRST, "2 tokens of a prompt of 3"),
        (replace(HANDOFF, prompt_digest=prompt_digest((1, 2, 4))), FIRST, "another prompt"),
        (replace(HANDOFF, block_groups=()), FIRST, "no blocks"),
        (replace(HANDOFF, block_groups=((),)), FIRST, "no blocks"),
        (replace(HANDOFF, lease_s=0.5), FIRST, "0.500 s of lease"),
        (HANDOFF, make_first(scheme="scheme-2"), "scheme-2"),
        (HANDOFF, make_first(step=0), "step 0"),
        (HANDOFF, make_first(seed=12), "seed 12"),
    ],
)
def test_a_doubtful_ticket_is_refused_and_stays_unused(
    handoff: KvHandoff, first: FirstToken, problem: str
) -> None:
    """The refusal says why; the ticket may still be used rightly."""
    tickets = Tickets(INFO)
    with pytest.raises(HandoffRejected, match=problem) as refusal:
        tickets.punch(handoff, first, PROMPT, SAMPLING)
    assert refusal.value.metadata["handoff_id"] == handoff.handoff_id
    tickets.punch(HANDOFF, FIRST, PROMPT, SAMPLING)


def test_used_tickets_are_remembered_for_their_lease_and_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded whatever the rate and the lease."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(tickets_module, "REMEMBERED", 10)
    tickets = Tickets(INFO)
    for number in range(25):
        tickets.punch(replace(HANDOFF, handoff_id=f"h{number}"), FIRST, PROMPT, SAMPLING)
    assert len(tickets) == 10
    now += HANDOFF.lease_s + 1
    tickets.punch(HANDOFF, FIRST, PROMPT, SAMPLING)
    assert len(tickets) == 1
