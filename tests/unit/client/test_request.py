"""What the client checks before anything is sent, and what it puts on the wire."""

import dataclasses

import pytest

import corun_pd.client
from corun_pd.client import ChatMessage, GenerationRequest, Options, Route, build_request
from corun_pd.client.transport.messages import request_to_pb
from corun_pd.errors import InvalidRequest


class Index:
    """An integer of another library, such as numpy's."""

    def __index__(self) -> int:
        return 7


class Array:
    """An array of another library."""

    def tolist(self) -> list[int]:
        return [1, 2, 3]


def test_the_public_face_is_pinned() -> None:
    """Adding a name is a decision, and taking one away breaks users."""
    assert sorted(corun_pd.client.__all__) == [
        "AsyncClient",
        "AsyncStream",
        "ChatMessage",
        "Choice",
        "Client",
        "Delta",
        "FinishReason",
        "Fleet",
        "FleetMember",
        "GenerationRequest",
        "GenerationResult",
        "GrpcTransport",
        "MockTransport",
        "Options",
        "Placement",
        "Prompt",
        "RetryPolicy",
        "Route",
        "ScoredPrompt",
        "Stream",
        "StreamEnd",
        "StreamEvent",
        "StreamStart",
        "Timings",
        "TokenLogprobs",
        "Transport",
        "Usage",
        "build_request",
        "make_result",
    ]
    assert all(hasattr(corun_pd.client, name) for name in corun_pd.client.__all__)


def test_options_and_request_have_the_same_fields() -> None:
    """What can be asked for is what is carried."""
    fields = {field.name for field in dataclasses.fields(GenerationRequest)}
    assert fields == Options.__annotations__.keys() | {"prompt"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 1 << 63}, "sampling.seed"),
        ({"seed": True}, "sampling.seed"),
        ({"seed": 10**5000}, "sampling.seed"),
        ({"max_tokens": -1}, "sampling.max_tokens"),
        ({"max_tokens": 1 << 32}, "sampling.max_tokens"),
        ({"max_tokens": 1.0}, "sampling.max_tokens"),
        ({"temperature": "0.5"}, "sampling.temperature"),
        ({"temperature": float("nan")}, "sampling.temperature"),
        ({"top_p": float("inf")}, "sampling.top_p"),
        ({"min_p": 10**400}, "sampling.min_p"),
        ({"top_k": 1 << 31}, "sampling.top_k"),
        ({"n": -1}, "sample_count"),
        ({"ignore_eos": 1}, "sampling.ignore_eos"),
        ({"stop": "a\ud800"}, "sampling.stop_strings"),
        ({"stop": ["fine", "\udfff"]}, "sampling.stop_strings[1]"),
        ({"stop": [7]}, "sampling.stop_strings[0]"),
        ({"stop_token_ids": [1, -2]}, "sampling.stop_token_ids[1]"),
        ({"logit_bias": {-1: 1.0}}, "sampling.logit_bias"),
        ({"logit_bias": {1: None}}, "sampling.logit_bias[1]"),
        ({"route": "sideways"}, "route"),
        ({"generation_id": "\ud800"}, "generation_id"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_by_field(options: Options, field: str) -> None:
    """Protobuf would raise a bare ValueError or TypeError in the middle of the call."""
    with pytest.raises(InvalidRequest) as caught:
        build_request("x", options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("prompt", "messages", "field"),
    [
        (None, None, "prompt"),
        ("x", [{"role": "user", "content": "x"}], "prompt"),
        ("x\ud83d", None, "text"),
        ([1, -1], None, "token_ids[1]"),
        ([1, 2.5], None, "token_ids[1]"),
        ([1, True], None, "token_ids[1]"),
        ([None], None, "token_ids[0]"),
        ([1 << 32], None, "token_ids[0]"),
        (b"abc", None, "token_ids"),
        (None, "hello", "chat.messages"),
        (None, ["hello"], "chat.messages[0]"),
        (None, [{"role": "user"}], "chat.messages[0].content"),
        (None, [{"role": "user", "content": "\ud800"}], "chat.messages[0].content"),
        (
            None,
            [ChatMessage("user", "x"), {"role": "user", "content": "x", "name": "n"}],
            "chat.messages[1].name",
        ),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_refused_by_field(
    prompt: str, messages: list[ChatMessage], field: str
) -> None:
    """The whole path of what is wrong, down to the element."""
    with pytest.raises(InvalidRequest) as caught:
        build_request(prompt, {"messages": messages})
    assert caught.value.field == field


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    """A typing mistake must not be dropped in silence."""
    with pytest.raises(TypeError, match="max_token"):
        build_request("x", {"max_token": 1})  # type: ignore[typeddict-unknown-key]


def test_zero_is_sent_and_unset_is_not() -> None:
    """Presence is carried for every scalar: 0 is a value, None is none."""
    names = [
        "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "ignore_eos", "logprob_count", "include_stop",
    ]  # fmt: skip
    zeros: Options = {
        "max_tokens": 0, "min_tokens": 0, "temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0, "seed": 0,
        "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 0, "ignore_eos": False,
        "logprobs": 0, "include_stop": False, "n": 0,
    }  # fmt: skip
    unset: Options = dict.fromkeys(zeros)  # type: ignore[assignment]
    sent, absent = request_to_pb(build_request("x", zeros)), request_to_pb(build_request("x", unset))
    assert [name for name in names if not sent.sampling.HasField(name)] == []
    assert [name for name in names if absent.sampling.HasField(name)] == []
    assert sent.HasField("sample_count")
    assert not absent.HasField("sample_count")
    assert absent == request_to_pb(build_request("x", {}))


def test_prompts_of_every_kind_keep_their_kind_when_empty() -> None:
    """An empty prompt is the router's to judge, so it must see which one was given."""
    cases = {
        "text": build_request("", {}),
        "token_ids": build_request([], {}),
        "chat": build_request(None, {"messages": []}),
    }
    assert {name: request_to_pb(request).WhichOneof("prompt") for name, request in cases.items()} == {
        name: name for name in cases
    }


def test_integers_and_arrays_of_other_libraries_are_taken() -> None:
    """Tokenizers give arrays and their integers."""
    assert build_request([Index(), 2], {"seed": Index()}).prompt == (7, 2)  # type: ignore[list-item, typeddict-item]
    assert build_request(Array(), {}).prompt == (1, 2, 3)  # type: ignore[arg-type]


def test_nul_is_text_and_routes_have_names() -> None:
    """Protobuf strings may hold NUL."""
    message = request_to_pb(build_request("a\0b", {"route": "colocated", "stop": "\0"}))
    assert message.text == "a\0b"
    assert list(message.sampling.stop_strings) == ["\0"]
    assert build_request("x", {"route": "colocated"}).route is Route.COLOCATED


@pytest.mark.parametrize(
    "value",
    [
        {"regex": 7},
        {"json_schema": {"a": float("nan")}},
        {"json_schema": {"a": {1}}},
        {"choices": "ab"},
        {"choices": [1]},
        {"xml": "x"},
        {"regex": "a", "grammar": "b"},
        {},
        "a",
    ],
    ids=str,
)
def test_a_constraint_that_cannot_be_written_is_refused(value: object) -> None:
    """Under the name of the option."""
    with pytest.raises(InvalidRequest) as error:
        build_request("x", {"structured_output": value})  # type: ignore[typeddict-item]
    assert error.value.field.startswith("sampling.structured_output")


def test_no_allowed_tokens_is_not_all_of_them() -> None:
    """The wire cannot tell an empty list from none, so the client does."""
    with pytest.raises(InvalidRequest) as error:
        build_request("x", {"allowed_token_ids": []})
    assert error.value.field == "sampling.allowed_token_ids"
    assert build_request("x", {"allowed_token_ids": None}).allowed_token_ids == ()
