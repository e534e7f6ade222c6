"""Answers as lines: OpenAI's shapes, strict JSON, nothing of clock or chance (C12, C17)."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch import Work
from corun_pd.batch.answers import encode, failure_line, result_line
from corun_pd.client import Choice, FinishReason, GenerationResult, ScoredPrompt, TokenLogprobs, Usage
from corun_pd.errors import DeadlineExceeded, EngineFailed, InvalidRequest
from tests.unit.batch.make import make_line, read_items

LOGPROBS = (
    TokenLogprobs(-0.1, 1, ((5, -0.1), (7, -math.inf))),
    TokenLogprobs(math.nan, 3, ((9, -0.2), (8, -0.30000001192092896))),
)


def make_result(**changes: Any) -> GenerationResult:
    """An answer of two tokens."""
    choice = replace(Choice(0, "ab", (5, 6), FinishReason.STOP, 11, stop_reason="."), **changes)
    return GenerationResult("g", (choice,), Usage(3, 2), "f" * 64, 11)


def render(path: Path, result: GenerationResult, *, chat: bool = False, **body: Any) -> dict[str, Any]:
    """The answer's line, through strict JSON and back."""
    (item,) = read_items(path, make_line(chat=chat, **body))
    assert isinstance(item, Work)
    line: dict[str, Any] = json.loads(encode(result_line(item, result)), parse_constant=pytest.fail)
    return line


def test_a_completion_has_openais_shape(tmp_path: Path) -> None:
    """Every field, so that a change of shape is seen."""
    line = render(tmp_path / "in", make_result())
    name = line["id"].removeprefix("batch_req_")
    assert len(name) == 24
    assert line == {
        "id": f"batch_req_{name}",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": f"req_{name}",
            "body": {
                "id": f"cmpl-{name}",
                "object": "text_completion",
                "created": 0,
                "model": "tiny",
                "choices": [
                    {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": "."}
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
                "system_fingerprint": "f" * 64,
                "seed": 11,
            },
        },
        "error": None,
    }


def test_a_chat_answer_is_a_message(tmp_path: Path) -> None:
    """And token ids are there when asked for."""
    body = render(tmp_path / "in", make_result(), chat=True, return_token_ids=True)["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": ".",
            "token_ids": [5, 6],
        }
    ]


def test_logprobs_are_strict_json_with_a_stand_in(tmp_path: Path) -> None:
    """-inf is -9999.0, no number is null, and float32 bits survive."""
    result = make_result(logprobs=LOGPROBS)
    completion = render(tmp_path / "in", result, logprobs=2)["response"]["body"]["choices"][0]["logprobs"]
    assert completion == {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.1, None],
        "top_logprobs": [
            {"token_id:5": -0.1, "token_id:7": -9999.0},
            {"token_id:9": -0.2, "token_id:8": -0.30000001192092896, "token_id:6": None},
        ],
    }
    chat = render(tmp_path / "in", result, chat=True)["response"]["body"]["choices"][0]["logprobs"]
    assert chat["content"][0] == {
        "token": "token_id:5",
        "logprob": -0.1,
        "bytes": None,
        "top_logprobs": [
            {"token": "token_id:5", "logprob": -0.1, "bytes": None},
            {"token": "token_id:7", "logprob": -9999.0, "bytes": None},
        ],
    }
    assert len(chat["content"]) == 2


PROMPT = ScoredPrompt((1, 2), (TokenLogprobs(-math.inf, 3, ((8, -0.5), (9, -1.0))),))


def test_an_echoed_prompt_has_its_logprobs_before_the_answers(tmp_path: Path) -> None:
    """As OpenAI has them: null for the first token; as many of the likeliest as for the answer."""
    result = replace(make_result(logprobs=LOGPROBS), prompt=PROMPT)
    (choice,) = render(tmp_path / "in", result, echo=True, logprobs=1)["response"]["body"]["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{n}" for n in (1, 2, 5, 6)]
    assert choice["logprobs"]["token_logprobs"] == [None, -9999.0, -0.1, None]
    assert choice["logprobs"]["top_logprobs"][:2] == [None, {"token_id:8": -0.5, "token_id:2": -9999.0}]
    assert "prompt_logprobs" not in choice


@pytest.mark.parametrize("chat", [False, True])
def test_prompt_logprobs_have_vllms_shape(tmp_path: Path, chat: bool) -> None:
    """By token id with rank, in the choice of a completion and once for a chat; strict JSON."""
    body = render(tmp_path / "in", replace(make_result(), prompt=PROMPT), chat=chat, prompt_logprobs=2)
    body = body["response"]["body"]
    assert (body if chat else body["choices"][0])["prompt_logprobs"] == [
        None,
        {
            "8": {"logprob": -0.5, "rank": 1, "decoded_token": None},
            "9": {"logprob": -1.0, "rank": 2, "decoded_token": None},
            "2": {"logprob": -9999.0, "rank": 3, "decoded_token": None},
        },
    ]


def test_ids_come_of_fingerprint_and_content(tmp_path: Path) -> None:
    """Equal lines under one contract have equal ids; another contract or body gives others."""
    result = make_result()
    first = render(tmp_path / "in", result)["id"]
    assert render(tmp_path / "in", replace(result, generation_id="other"))["id"] == first
    assert render(tmp_path / "in", replace(result, system_fingerprint="0" * 64))["id"] != first
    assert render(tmp_path / "in", result, temperature=0.5)["id"] != first


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidRequest("top_p", "too big"), 400, "invalid_request_error", "top_p", "invalid_request"),
        (DeadlineExceeded("late"), 504, "server_error", None, "deadline_exceeded"),
        (EngineFailed("died"), 500, "server_error", None, "engine_failed"),
    ],
)
def test_failure_is_told_by_the_status_and_the_body(
    error: InvalidRequest, status: int, kind: str, param: str | None, code: str
) -> None:
    """One pair of fields for every failure; `error` is never used for it."""
    line = json.loads(encode(failure_line("f", b"key", "id", error)))
    assert line["error"] is None
    assert line["response"]["status_code"] == status
    assert line["response"]["body"]["error"] == {
        "message": error.message,
        "type": kind,
        "param": param,
        "code": code,
    }


@pytest.mark.parametrize("custom_id", ["x" * 10_000, "👩‍👩‍👧 ü", "a\ud800b", "nul\0", 'q"\\', "\u2028"])
def test_a_custom_id_is_carried_unchanged(custom_id: str) -> None:
    """Long, emoji, a lone surrogate, NUL, quotes: what comes out is what went in, on one line."""
    data = encode(failure_line("f", b"key", custom_id, EngineFailed("x")))
    assert data.count(b"\n") == 1
    assert json.loads(data)["custom_id"] == custom_id
