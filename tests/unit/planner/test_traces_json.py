"""JSON traces: Mooncake, vLLM's timed trace, ShareGPT, batch files (C26)."""

import json
from pathlib import Path
from typing import Any

import pytest

from corun_pd.errors import SetupError
from corun_pd.planner.traces import (
    Drop,
    Note,
    OpenAiBatch,
    ShareGpt,
    TraceRequest,
    characters_per_token,
    mooncake,
    vllm_timed,
)
from tests.unit.planner.make import dialogue, read, write

RULE = characters_per_token(4)


def row(stamp: float | None, prompt: int, output: int, ids: list[int] | None = None) -> dict[str, Any]:
    found = {"timestamp": stamp, "input_length": prompt, "output_length": output, "hash_ids": ids}
    return {key: value for key, value in found.items() if value is not None}


def test_mooncake_stamps_are_milliseconds_and_give_the_right_rate(tmp_path: Path) -> None:
    """Ten requests at once, and the next three seconds later."""
    trace = mooncake(write(tmp_path / "m.jsonl", *[row(0, 511, 1, [7])] * 10, row(3000, 511, 1, [7])))
    times = [request.arrival_s for request in read(trace)]
    assert times == [0.0] * 10 + [3.0]
    assert trace.report.last_arrival_s == 3.0
    assert "milliseconds, 512 tokens per hash id" in trace.report.lines()[0]


def test_length_is_the_rows_and_not_that_of_its_hash_ids(tmp_path: Path) -> None:
    """900 tokens with two 512-token ids are 900 tokens; under 16-token blocks the ids cannot be theirs."""
    path = write(tmp_path / "m.jsonl", row(0, 900, 4, [0, 1]))
    assert read(mooncake(path)) == [TraceRequest(0.0, 900, 4, (0, 1))]
    misread = vllm_timed(path)
    assert read(misread) == [TraceRequest(0.0, 900, 4, None)]
    assert misread.report.notes == {Note.WRONG_BLOCKS: 1}
    assert "16 tokens per hash id" in misread.report.unit


def test_large_ids_stay_apart(tmp_path: Path) -> None:
    """Ids that agree in their low 32 bits are different blocks."""
    first, second = read(
        mooncake(write(tmp_path / "m.jsonl", row(0, 512, 2, [5]), row(0, 512, 2, [5 + (1 << 32)])))
    )
    assert first.prefix == (5,)
    assert second.prefix == (5 + (1 << 32),)


def test_trace_without_times_has_no_arrivals(tmp_path: Path) -> None:
    """They are not taken as all at zero."""
    trace = mooncake(write(tmp_path / "m.jsonl", row(None, 10, 2, [1]), row(None, 10, 1, [1])))
    assert [request.arrival_s for request in read(trace)] == [None, None]
    assert trace.report.last_arrival_s is None


def test_a_row_without_time_among_timed_ones_is_dropped(tmp_path: Path) -> None:
    """And a stamp in a file without times is left out; both are counted."""
    timed = mooncake(write(tmp_path / "a.jsonl", row(5, 10, 2), row(None, 10, 2), row(1005, 10, 2)))
    assert [request.arrival_s for request in read(timed)] == [0.0, 1.0]
    assert timed.report.dropped == {Drop.NO_TIME: 1}
    untimed = mooncake(write(tmp_path / "b.jsonl", row(None, 10, 2), row(5, 10, 2)))
    assert [request.arrival_s for request in read(untimed)] == [None, None]
    assert untimed.report.notes == {Note.UNTIMED: 1}


def test_odd_rows_are_dropped_by_reason(tmp_path: Path) -> None:
    """Broken JSON, other JSON, text for a number, nothing asked for."""
    trace = vllm_timed(
        write(tmp_path / "v.jsonl", "{broken", "[1]", {"input_length": "9"}, row(0, 0, 3), row(1.5, 40, 8))
    )
    assert read(trace) == [TraceRequest(0.0, 40, 8, None)]
    assert trace.report.dropped == {Drop.NOT_JSON: 2, Drop.NOT_A_NUMBER: 1, Drop.NO_PROMPT: 1}


DIALOGUES = [
    dialogue(("human", "a" * 40), ("gpt", "b" * 20)),
    dialogue(("human", "a" * 40)),
    dialogue(("gpt", "welcome"), ("human", "a" * 33), ("gpt", "b" * 8)),
    dialogue(
        ("system", "s" * 12), ("human", "a" * 8), ("gpt", "b" * 4), ("human", "c" * 4), ("gpt", "d" * 8)
    ),
    dialogue(("human", "a"), ("gpt", "")),
    dialogue(*[("human", "a" * 4), ("gpt", "b" * 8)] * 10),
    dialogue(("human", "a"), ("narrator", "b")),
]


@pytest.mark.parametrize("layout", ["array", "lines"])
def test_sharegpt_takes_the_first_answer_with_all_before_it(tmp_path: Path, layout: str) -> None:
    """A greeting and a system turn are prompt; a dialogue without an answer is dropped."""
    path = tmp_path / "s.json"
    if layout == "array":
        path.write_text(json.dumps(DIALOGUES, indent=1))
    else:
        write(path, *DIALOGUES)
    trace = ShareGpt(path, RULE)
    lengths = [(request.prompt_tokens, request.output_tokens) for request in read(trace)]
    assert lengths == [(10, 5), (2 + 9, 2), (3 + 2, 1), (1, 2)]
    assert trace.report.dropped == {Drop.NO_ANSWER: 1, Drop.EMPTY_TURN: 1, Drop.UNKNOWN_SPEAKER: 1}
    assert "4 characters per token" in trace.report.unit


def test_sharegpt_takes_every_turn_when_asked(tmp_path: Path) -> None:
    """Twenty turns are ten requests with growing prompts."""
    trace = ShareGpt(write(tmp_path / "s.jsonl", DIALOGUES[5]), RULE, all_turns=True)
    assert [request.prompt_tokens for request in read(trace)] == [1 + 3 * turn for turn in range(10)]
    assert (trace.report.kept, trace.report.requests) == (1, 10)


def test_array_longer_than_the_window_is_read_whole(tmp_path: Path) -> None:
    """Items straddle what is read at a time."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps([dialogue(("human", "é" * 700_000), ("gpt", "b" * 8))] * 5))
    assert read(ShareGpt(path, RULE)) == [TraceRequest(None, 175_000, 2)] * 5


def test_cut_array_is_an_error(tmp_path: Path) -> None:
    """Half a download is not half a workload."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps(DIALOGUES)[:-20])
    with pytest.raises(SetupError, match="not a JSON array to its end"):
        read(ShareGpt(path, RULE))


def test_batch_lines_give_a_request_per_sample(tmp_path: Path) -> None:
    """Ids are counted, text by the rule; a line without a limit is dropped unless a default is given."""
    message = {"role": "user", "content": "x" * 40}
    parts = {"role": "user", "content": [{"type": "text", "text": "x" * 8}, {"type": "image_url"}]}
    bodies: list[dict[str, Any]] = [
        {"messages": [message, message], "max_completion_tokens": 24, "n": 2},
        {"prompt": [1, 2, 3], "max_tokens": 8},
        {"prompt": "x" * 9},
        {"messages": [parts], "max_tokens": 4},
        {"prompt": 3, "max_tokens": 4},
    ]
    path = write(tmp_path / "b.jsonl", *[{"custom_id": "a", "body": body} for body in bodies])
    trace = OpenAiBatch(path, RULE)
    groups = [request.group for request in trace]
    assert groups[0] is not None
    assert groups == [groups[0], groups[0], None, None]  # n samples have one prompt
    assert [(r.prompt_tokens, r.output_tokens) for r in read(trace)] == [(20, 24), (20, 24), (3, 8), (2, 4)]
    assert trace.report.dropped == {Drop.NO_LIMIT: 1, Drop.NOT_TEXT: 1}
    assert trace.report.notes == {Note.NOT_ONLY_TEXT: 1}
    assert len(read(OpenAiBatch(path, RULE, default_output_tokens=16))) == 5
