"""Lines to requests: every fault found, none taken for another (C16, C18, C19)."""

import json
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import BatchSource, Refusal, Served, Work
from corun_pd.batch.reader import MAX_LINE_BYTES
from corun_pd.client import Fleet, Options, build_request
from corun_pd.client.transport.messages import request_to_pb
from corun_pd.errors import SetupError, Unavailable, UnsupportedParameter
from tests.unit.batch.make import SERVED, make_line, read_items, write_lines


def refusal(path: Path, line: dict[str, Any] | str) -> Refusal:
    """The refusal of a line."""
    (item,) = read_items(path, line)
    assert isinstance(item, Refusal), item
    return item


def work(path: Path, line: dict[str, Any]) -> Work:
    """The work of a line."""
    (item,) = read_items(path, line)
    assert isinstance(item, Work), item
    return item


def without(line: dict[str, Any], key: str) -> dict[str, Any]:
    """The line less a key."""
    return {name: value for name, value in line.items() if name != key}


def test_every_fault_of_a_file_is_found_in_one_pass(tmp_path: Path) -> None:
    """All of them, with line, custom_id and reason; the good lines among them stay."""
    lines: list[tuple[dict[str, Any] | str, str | None]] = [
        (make_line("good-1"), None),
        (without(make_line(), "custom_id"), "custom_id: is missing"),
        (make_line(7), "custom_id: must be text"),
        (make_line(""), "custom_id: must be text"),
        (make_line("good-1"), "custom_id: is that of line 1"),
        (make_line("b") | {"method": "GET"}, "method: must be POST"),
        (without(make_line("c"), "url"), "url: is missing"),
        (make_line("d") | {"url": "/v1/embeddings"}, "url: must be one of"),
        (make_line("e", stream=True), "stream: cannot be served"),
        ("[1, 2]", "must be a JSON object, not an array"),
        (json.dumps(make_line("f"))[:-9], "is not JSON"),
        ('{"custom_id": "g", "custom_id": "h"}', "'custom_id' twice"),
        (json.dumps(make_line("i", temperature=float("nan"))), "NaN is no JSON number"),
        (make_line("j", model="other"), "model: is 'other'"),
        (make_line("k") | {"body": []}, "body: must be a JSON object"),
        (make_line("l") | {"extra": 1}, "extra: is not a field"),
        ("null", "not null"),
        ("[" * 100_000, "is nested deeper than 128 levels"),
        ('{"a": ' + "9" * 5000 + "}", "a number that is too long"),
        (make_line("good-2", chat=True), None),
    ]
    items = read_items(tmp_path / "in", *(line for line, _ in lines))
    assert [isinstance(item, Work) for item in items] == [reason is None for _, reason in lines]
    for number, (item, (_, reason)) in enumerate(zip(items, lines, strict=True), 1):
        if isinstance(item, Refusal):
            assert reason is not None
            assert reason in str(item)
            assert f"line {number} " in str(item)


def test_how_deep_a_line_may_be_nested_does_not_depend_on_who_asks(tmp_path: Path) -> None:
    """The interpreter's own limit is met sooner by a deeper caller, and two passes would differ."""
    at, over = (
        json.dumps(make_line(f"{depth}")).replace('"hi"', '"hi", "metadata": ' + "[" * depth + "]" * depth)
        for depth in (126, 127)
    )
    path = write_lines(tmp_path / "in", at, over)
    source = BatchSource(path, SERVED)
    (_, refused) = source.check()
    assert refused is not None
    assert refused.error.problem == "is nested deeper than 128 levels"
    assert [work.line.custom_id for work in source.remaining(lambda line: line.index == 1)] == ["126"]


def test_a_line_that_cannot_be_parsed_is_reported_under_its_id(tmp_path: Path) -> None:
    """The custom_id mostly stands first, so that it can be told even of a line that is cut off."""
    assert refusal(tmp_path / "in", json.dumps(make_line('q"ü'))[:-9]).custom_id == 'q"ü'
    assert refusal(tmp_path / "in", '{"custom_id": "cut').custom_id is None


def test_a_line_over_the_limit_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    """30 MB against a limit that the message states."""
    first, second = read_items(
        tmp_path / "in", make_line("long", prompt="x" * 30_000_000), make_line("short")
    )
    assert isinstance(first, Refusal)
    assert first.custom_id == "long"
    assert str(MAX_LINE_BYTES) in str(first)
    assert isinstance(second, Work)


def test_invalid_utf8_fails_its_line_alone(tmp_path: Path) -> None:
    """A Latin-1 byte in the middle of a UTF-8 file."""
    path = tmp_path / "in"
    path.write_bytes(b'{"custom_id": "\xe9"}\n' + json.dumps(make_line()).encode() + b"\n")
    first, second = BatchSource(path, SERVED)
    assert isinstance(first, Refusal)
    assert "is not UTF-8" in str(first)
    assert isinstance(second, Work)


def test_a_file_without_records_is_an_error(tmp_path: Path) -> None:
    """Empty, and of blank lines alone."""
    for text in ("", "\n\r\n \n"):
        (tmp_path / "in").write_text(text)
        with pytest.raises(SetupError, match="no lines"):
            list(BatchSource(tmp_path / "in", SERVED))


def test_a_file_that_changes_between_passes_is_noticed(tmp_path: Path) -> None:
    """What was checked must be what runs."""
    source = BatchSource(write_lines(tmp_path / "in", make_line()), SERVED)
    list(source)
    list(source)
    write_lines(tmp_path / "in", make_line(prompt="other"))
    with pytest.raises(SetupError, match="changed"):
        list(source)


@pytest.mark.parametrize("chat", [False, True])
def test_zero_and_unset_are_what_they_are_by_sdk(tmp_path: Path, chat: bool) -> None:
    """The same request by batch file and by SDK is the same message on the wire."""
    zeros: dict[str, Any] = {
        "temperature": 0.0, "top_k": 0, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0.0,
        "min_tokens": 0, "seed": 0, "max_tokens": 0, "n": 1, "ignore_eos": False,
    }  # fmt: skip
    prompt = None if chat else "hi"
    for given in ({}, zeros, {"top_k": -1}, {"seed": 5, "temperature": 0.7, "logit_bias": {"7": 1.5}}):
        options: Options = {**given}  # type: ignore[typeddict-item]
        if chat:
            options["messages"] = [{"role": "user", "content": "hi"}]
        if "logit_bias" in options:
            options["logit_bias"] = {7: 1.5}
        item = work(tmp_path / "in", make_line(chat=chat, **given))
        ours = request_to_pb(build_request(prompt, options))
        theirs = request_to_pb(item.request)
        assert theirs.generation_id
        theirs.ClearField("generation_id")
        if "seed" not in given:  # the one thing that a job adds
            assert theirs.sampling.HasField("seed")
            theirs.sampling.ClearField("seed")
        assert theirs == ours
        nulls = {name: None for name in zeros if name not in given}
        again = work(tmp_path / "in", make_line(chat=chat, **given, **nulls))
        assert request_to_pb(again.request).sampling.HasField("temperature") == ("temperature" in given)


def test_a_missing_seed_comes_of_the_content_and_the_job(tmp_path: Path) -> None:
    """The same on every run and at every place in the file; other with other content or another --seed."""

    def seeds(*lines: dict[str, Any], seed: int = 0) -> list[int | None]:
        items = read_items(tmp_path / "in", *lines, seed=seed)
        return [item.request.seed for item in items if isinstance(item, Work)]

    a, b, given = make_line("a"), make_line("b"), make_line("c", seed=9)
    first, second, third = seeds(a, b, given)
    assert seeds(b, given, a) == [second, third, first]
    assert third == 9
    assert first != second
    assert seeds(a, seed=1) != [first]
    assert seeds(make_line("a", temperature=0.5)) != [first]
    assert first is not None
    assert 0 <= first < 1 << 62


@pytest.mark.parametrize(
    ("chat", "body", "param"),
    [
        (False, {"prompt": None}, "prompt"),
        (False, {"prompt": []}, "prompt"),
        (False, {"prompt": ["a", "b"]}, "prompt"),
        (False, {"prompt": [1, -2]}, "prompt[1]"),
        (False, {"prompt": "x\ud800"}, "prompt"),
        (False, {"prompt": 7}, "prompt"),
        (False, {"messages": []}, "messages"),
        (False, {"logprobs": True}, "logprobs"),
        (False, {"logprobs": -1}, "logprobs"),
        (False, {"echo": 1}, "echo"),
        (False, {"allowed_token_ids": []}, "allowed_token_ids"),
        (False, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (False, {"echo": True, "logprobs": "2"}, "logprobs"),
        (False, {"bad_words": [1]}, "bad_words[0]"),
        (False, {"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        (False, {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (False, {"structured_outputs": {"regex": 7}}, "structured_outputs.regex"),
        (False, {"structured_outputs": {"json": "\ud800"}}, "structured_outputs.json"),
        (False, {"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
        (False, {"stream": 0}, "stream"),
        (False, {"best_of": 4, "n": 2}, "best_of"),
        (False, {"max_tokens": -1}, "max_tokens"),
        (False, {"max_tokens": "5"}, "max_tokens"),
        (False, {"temperature": 1e999}, "line"),
        (False, {"seed": -1}, "seed"),
        (False, {"seed": 1 << 64}, "seed"),
        (False, {"stop": ["a", 3]}, "stop[1]"),
        (False, {"stop": ["\ud800"]}, "stop[0]"),
        (False, {"logit_bias": {"x": 1}}, "logit_bias"),
        (False, {"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        (False, {"logit_bias": {"1": "2"}}, "logit_bias[1]"),
        (False, {"guided_json": {}}, "guided_json"),
        (False, {"temprature": 0.5}, "temprature"),
        (False, {"return_token_ids": 1}, "return_token_ids"),
        (False, {"model": None}, "model"),
        (True, {"messages": "hi"}, "messages"),
        (True, {"messages": []}, "messages"),
        (True, {"messages": [7]}, "messages[0]"),
        (True, {"messages": [{"role": "user"}]}, "messages[0].content"),
        (True, {"messages": [{"role": "user", "content": "a", "name": "n"}]}, "messages[0].name"),
        (True, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        (True, {"messages": [{"role": "user", "content": "\udc00"}]}, "messages[0].content"),
        (True, {"prompt": "x"}, "prompt"),
        (True, {"logprobs": 2}, "logprobs"),
        (True, {"top_logprobs": 2}, "top_logprobs"),
        (True, {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        (True, {"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
        (True, {"max_completion_tokens": -5}, "max_completion_tokens"),
        (True, {"echo": True}, "echo"),
        (True, {"response_format": {"type": "structural_tag"}}, "response_format"),
        (True, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (True, {"tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_what_cannot_be_served_exactly_is_refused_by_its_own_name(
    tmp_path: Path, chat: bool, body: dict[str, Any], param: str
) -> None:
    """The name that the writer of the file knows, not the wire's; nothing is dropped in silence."""
    line = json.dumps(make_line(chat=chat, **body)).replace("Infinity", "1e999")
    item = refusal(tmp_path / "in", line)
    assert item.error.field == ("temperature" if "1e999" in line else param)
    assert item.custom_id == "a"


def test_known_and_unknown_fields_are_told_apart(tmp_path: Path) -> None:
    """A typing mistake is not "unsupported"."""
    assert isinstance(refusal(tmp_path / "in", make_line(suffix="x")).error, UnsupportedParameter)
    assert not isinstance(refusal(tmp_path / "in", make_line(sufix="x")).error, UnsupportedParameter)


def test_harmless_and_neutral_fields_are_taken(tmp_path: Path) -> None:
    """They cannot change the answer: names for billing, defaults spelled out, null for anything known."""
    plain = work(tmp_path / "in", make_line(seed=1)).request
    body = {
        "user": "u", "metadata": {"k": "v"}, "stream": False, "echo": False, "best_of": 1, "tools": None,
        "response_format": {"type": "text"}, "service_tier": "auto", "guided_json": None,
    }  # fmt: skip
    del body["tools"]
    request = work(tmp_path / "in", make_line(seed=1, **body)).request
    assert request_to_pb(request).sampling == request_to_pb(plain).sampling
    tools = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "modalities": ["text"]}
    assert work(tmp_path / "in", make_line(chat=True, **tools))


def test_dialects_of_prompt_stop_limit_and_logprobs(tmp_path: Path) -> None:
    """Each of OpenAI's two endpoints has its own."""

    def request(chat: bool, **body: Any) -> Any:
        return work(tmp_path / "in", make_line(chat=chat, **body)).request

    assert request(False, prompt=["solo"]).prompt == "solo"
    assert request(False, prompt=[[1, 2]]).prompt == (1, 2)
    assert request(False, prompt=[1, 2]).prompt == (1, 2)
    assert request(False, prompt="a\0b").prompt == "a\0b"
    assert request(False, stop=".").stop == (".",)
    assert request(False, stop=[".", "!"]).stop == (".", "!")
    assert request(False, logprobs=0).logprobs == 0
    assert request(False).logprobs is None
    assert request(True, logprobs=True).logprobs == 0
    assert request(True, logprobs=True, top_logprobs=5).logprobs == 5
    assert request(True, logprobs=False).logprobs is None
    assert request(True, max_completion_tokens=5).max_tokens == 5
    assert request(True, max_completion_tokens=5, max_tokens=5).max_tokens == 5
    parts = [{"role": "user", "content": [{"type": "text", "text": "t"}]}]
    assert request(True, messages=parts).messages[0].content == "t"


def test_what_is_served_comes_from_the_fleet() -> None:
    """A fleet without instances cannot run a job, and says so."""
    with pytest.raises(Unavailable, match="no instance has joined"):
        Served.of(Fleet(None, {}, (), 0, 0, 1))


@pytest.mark.parametrize(
    ("chat", "body", "options"),
    [
        (False, {"structured_outputs": {"json": {"b": 1, "a": 2}}}, {"json_schema": {"b": 1, "a": 2}}),
        (False, {"structured_outputs": {"choice": ["x", "y"], "regex": None}}, {"choices": ["x", "y"]}),
        (False, {"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
        (True, {"structured_outputs": {"grammar": "g"}}, {"grammar": "g"}),
        (True, {"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        (
            True,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"x": {}}}}},
            {"json_schema": {"x": {}}},
        ),
        (True, {"response_format": {"type": "text"}}, None),
    ],
    ids=str,
)
def test_constraints_on_the_text_become_the_clients(
    tmp_path: Path, chat: bool, body: dict[str, Any], options: dict[str, Any] | None
) -> None:
    """OpenAI's and vLLM's words for them; a schema keeps the order of its keys."""
    (item,) = read_items(tmp_path / "in", make_line(chat=chat, **body))
    assert isinstance(item, Work)
    assert (
        item.request.structured_output == build_request("x", {"structured_output": options}).structured_output
    )


def test_an_echo_with_logprobs_asks_for_the_prompts(tmp_path: Path) -> None:
    """As many as for the answer, or as are asked for beside."""
    (item, more) = read_items(
        tmp_path / "in",
        make_line("a", echo=True, logprobs=2),
        make_line("b", echo=True, logprobs=2, prompt_logprobs=4),
    )
    assert isinstance(item, Work)
    assert isinstance(more, Work)
    assert (item.request.prompt_logprobs, item.request.echo, more.request.prompt_logprobs) == (2, True, 4)
