"""What crosses the wire arrives as it was sent."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.contract import Contract
from corun_pd.core import (
    SEED_LIMIT,
    FinishReason,
    FirstToken,
    InstanceInfo,
    InstanceLoad,
    KvHandoff,
    RngState,
    Role,
    SamplingParams,
    StructuredOutput,
    Syntax,
    TokenLogprobs,
)
from corun_pd.errors import InvalidRequest
from corun_pd.v1 import instance_pb2, kv_handoff_pb2, sampling_pb2
from corun_pd.wire import convert

CONTRACT = Contract({"slots": 8, "model": "m", "list": (1, 2)})
INFO = InstanceInfo(
    "i-1",
    Role.DECODE,
    "127.0.0.1:5",
    CONTRACT.fingerprint,
    CONTRACT.as_json,
    "m",
    8,
    100,
    16,
    4096,
    2048,
    7,
    20,
    512,
)
TOKEN_IDS = st.integers(0, (1 << 32) - 1)
FLOATS = st.floats(width=32, allow_nan=False)
LOGPROBS = st.builds(
    TokenLogprobs,
    FLOATS,
    st.integers(1, 1 << 31),
    st.lists(st.tuples(TOKEN_IDS, FLOATS), max_size=4).map(tuple),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 1 << 31),
    seed=st.integers(0, SEED_LIMIT - 1),
    min_tokens=st.integers(0, 1 << 31),
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 1 << 30),
    logit_bias=st.dictionaries(TOKEN_IDS, st.floats(-100, 100), max_size=3),
    stop_token_ids=st.lists(TOKEN_IDS, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    allowed_token_ids=st.lists(TOKEN_IDS, max_size=3).map(tuple),
    bad_words=st.lists(st.lists(TOKEN_IDS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    structured_output=st.none()
    | st.builds(StructuredOutput, st.sampled_from([*Syntax][:2]), TEXT)
    | st.builds(StructuredOutput, st.just(Syntax.CHOICES), st.lists(TEXT, max_size=3).map(json.dumps)),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
HANDOFFS = st.builds(
    KvHandoff,
    handoff_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    engine_id=st.just("e"),
    host=st.just("h"),
    port=st.integers(0, 65535),
    block_groups=st.lists(st.lists(TOKEN_IDS, max_size=4).map(tuple), max_size=3).map(tuple),
    token_count=st.integers(0, 1 << 31),
    prompt_digest=st.binary(min_size=32, max_size=32),
    fingerprint=st.just("f"),
    lease_s=st.integers(0, 10**6).map(lambda ms: ms / 1000),
    tensor_parallel_size=st.integers(1, 8),
)


def over(message: Any) -> Any:
    """Through the bytes, as a peer gets it."""
    return type(message).FromString(message.SerializeToString())


@given(SAMPLING)
def test_sampling_arrives_unchanged(sampling: SamplingParams) -> None:
    """Zeros included: every scalar has presence."""
    assert convert.sampling_from_pb(over(convert.sampling_to_pb(sampling))) == sampling


@given(st.lists(LOGPROBS, max_size=5))
def test_logprobs_arrive_to_the_bit(logprobs: list[TokenLogprobs]) -> None:
    """float32 values pass through unrounded, minus zero too."""
    found = convert.logprobs_from_pb(over(convert.logprobs_to_pb(logprobs)))
    assert found == logprobs
    assert [struct.pack("f", x.sampled) for x in found] == [struct.pack("f", x.sampled) for x in logprobs]


@given(HANDOFFS)
def test_handoff_arrives_unchanged(handoff: KvHandoff) -> None:
    """Block groups keep their order, and empty groups stay."""
    assert convert.handoff_from_pb(over(convert.handoff_to_pb(handoff))) == handoff


@given(TOKEN_IDS, st.integers(0, SEED_LIMIT - 1), st.none() | LOGPROBS)
def test_first_token_arrives_unchanged(token_id: int, seed: int, logprobs: TokenLogprobs | None) -> None:
    """With or without logprobs."""
    first = FirstToken(token_id, RngState("scheme", seed, 1), logprobs)
    assert convert.first_token_from_pb(over(convert.first_token_to_pb(first))) == first


@pytest.mark.parametrize("role", Role)
def test_instance_arrives_unchanged(role: Role) -> None:
    """In every role."""
    info = InstanceInfo(*("i", role, *(getattr(INFO, name) for name in InstanceInfo.__slots__[2:])))
    assert convert.instance_from_pb(over(convert.instance_to_pb(info))) == info


def test_load_and_reasons_arrive_unchanged() -> None:
    """All counters, and every reason."""
    load = InstanceLoad(*range(1, 11))
    assert convert.load_from_pb(over(convert.load_to_pb(load))) == load
    for reason in (None, *FinishReason):
        assert convert.finish_from_pb(convert.finish_to_pb(reason)) is reason


@pytest.mark.parametrize("name", convert.LEG_SCALARS)
def test_leg_with_an_unset_scalar_is_refused(name: str) -> None:
    """Else zero would stand for unset."""
    message = convert.sampling_to_pb(SamplingParams(max_tokens=1, seed=1))
    message.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"sampling.{name}: unset"):
        convert.sampling_from_pb(message)


def instance(**fields: Any) -> instance_pb2.Instance:
    message = convert.instance_to_pb(INFO)
    message.MergeFrom(instance_pb2.Instance(**fields))
    return message


def without(name: str) -> instance_pb2.Instance:
    message = convert.instance_to_pb(INFO)
    message.ClearField(name)  # type: ignore[arg-type]
    return message


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("first_token.rng", lambda: convert.first_token_from_pb(kv_handoff_pb2.FirstToken(token_id=1))),
        (
            "first_token.logprobs",
            lambda: convert.first_token_from_pb(
                kv_handoff_pb2.FirstToken(rng=kv_handoff_pb2.RngState(), logprobs=sampling_pb2.Logprobs())
            ),
        ),
        ("logprobs", lambda: convert.logprobs_from_pb(sampling_pb2.Logprobs(sampled=[1.0]))),
        ("instance.role", lambda: convert.instance_from_pb(without("role"))),
        ("instance.address", lambda: convert.instance_from_pb(without("address"))),
        ("instance.slot_count", lambda: convert.instance_from_pb(without("slot_count"))),
        (
            "instance.contract.fingerprint",
            lambda: convert.instance_from_pb(
                instance(contract=instance_pb2.Contract(settings={"slots": "9"}))
            ),
        ),
        ("finish_reason", lambda: convert.finish_from_pb(9)),  # type: ignore[arg-type]
    ],
)
def test_broken_message_names_its_field(field: str, broken: Callable[[], object]) -> None:
    """An error at the edge, and not a wrong value behind it."""
    with pytest.raises(InvalidRequest) as fault:
        broken()
    assert fault.value.field == field
