"""A handoff survives its way through the connector's parameters; one that lies about its prompt does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.core import prompt_digest
from corun_pd.errors import EngineFailed
from corun_pd.kv_transfer.nixl import connector_config, decode_params, handoff_from_params, prefill_params

groups = st.lists(st.lists(st.integers(0, 1 << 20), max_size=9), min_size=1, max_size=6)


def make_params(block_groups: list[list[int]], tokens: int | None, **changes: object) -> dict[str, object]:
    """What the connector of a prefill engine says of a finished prompt."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": block_groups,
        "remote_engine_id": "prefill-7",
        "remote_request_id": "leg-3",
        "remote_host": "10.0.0.2",
        "remote_port": 5701,
        "tp_size": 2,
        "remote_num_tokens": tokens,
        **changes,
    }


@given(groups, st.lists(st.integers(0, 1 << 18), min_size=1, max_size=50))
def test_what_prefill_kept_is_what_decode_asks_for(block_groups: list[list[int]], prompt: list[int]) -> None:
    """Every group's blocks in order, and where they are; models with windows have several groups."""
    given_params = make_params(block_groups, len(prompt))
    handoff = handoff_from_params(given_params, prompt, "f" * 64, 600.0)
    asked = decode_params(handoff)
    assert {name: asked[name] for name in given_params} == given_params
    assert handoff.block_count == sum(map(len, block_groups))
    assert handoff.prompt_digest == prompt_digest(prompt)
    assert (handoff.fingerprint, handoff.lease_s) == ("f" * 64, 600.0)


@pytest.mark.parametrize("kept", [None, 0, 31, 33])
def test_another_number_of_tokens_is_refused(kept: int | None) -> None:
    """A prompt computed in part would be completed by the decode engine, in another shape."""
    with pytest.raises(EngineFailed, match=f"kept {kept} tokens of a prompt of 32"):
        handoff_from_params(make_params([[1]], kept), range(32), "f", 1.0)


def test_parameters_that_are_missing_are_refused() -> None:
    """A finished leg without parameters has kept nothing (C04)."""
    with pytest.raises(EngineFailed, match="kept None tokens"):
        handoff_from_params({}, [1, 2], "f", 1.0)


def test_a_prefill_leg_asks_to_keep_and_never_to_pull() -> None:
    """The two directions exclude each other."""
    assert prefill_params() == {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.mark.parametrize(("producer", "role"), [(True, "kv_producer"), (False, "kv_consumer")])
def test_a_failed_load_is_an_error(producer: bool, role: str) -> None:
    """Never a local prefill in a decode engine."""
    config = connector_config(producer=producer, engine_id="e", device="cpu", lease_s=12.4)
    assert config["kv_role"] == role
    assert config["kv_load_failure_policy"] == "fail"
    assert config["kv_connector_extra_config"]["kv_lease_duration"] == 12
