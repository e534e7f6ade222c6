"""Answers as lines of OpenAI's batch output.

No clock and no chance is in them. `created` is 0: OpenAI's readers require the field, and a time would
make two runs differ. Ids are made of the contract's fingerprint and the line's content. A line failed
when `response.status_code` is 400 or more, and `response.body.error` says why; `error` is always null.

Tokens in logprobs are written `token_id:7`, as vLLM does with return_tokens_as_token_ids, since the
text of one token alone is not defined. Logprobs of -inf are written -9999.0, as OpenAI does, and those
that are no number null, since JSON has neither.
"""

import hashlib
import json
import math
from dataclasses import replace
from typing import Final

import orjson

from corun_pd.batch.line import Endpoint, Json
from corun_pd.batch.source import Work
from corun_pd.client import Choice, GenerationResult, ScoredPrompt
from corun_pd.core import TokenLogprobs
from corun_pd.errors import CorunError, DeadlineExceeded, InvalidRequest

__all__ = ["MINUS_INFINITY", "encode", "failure_line", "result_line", "status_of"]

#: Stands for a logprob of -inf.
MINUS_INFINITY: Final = -9999.0

_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)


def result_line(work: Work, result: GenerationResult) -> dict[str, Json]:
    """The line of an answer."""
    name = _name(result.system_fingerprint, work.key)
    given = work.line.body
    chat = work.line.endpoint is Endpoint.CHAT
    with_ids = bool(given.get("return_token_ids"))
    if chat:
        choices = [_chat_choice(choice, with_ids) for choice in result.choices]
    else:
        echoed = result.prompt if given.get("echo") else None
        choices = [
            _completion_choice(choice, with_ids, echoed, given.get("logprobs")) for choice in result.choices
        ]
    body: dict[str, Json] = {
        "id": f"chatcmpl-{name}" if chat else f"cmpl-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": work.line.body.get("model"),
        "choices": list(choices),
        "usage": {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "total_tokens": result.usage.total_tokens,
        },
        "system_fingerprint": result.system_fingerprint,
        "seed": result.seed,
    }
    wanted = given.get("prompt_logprobs")
    if result.prompt is not None and isinstance(wanted, int):
        # vLLM has them once for a chat, and in each choice of a completion.
        for place in [body] if chat else choices:
            place["prompt_logprobs"] = _prompt_logprobs(result.prompt, wanted)
    return _line(name, work.line.custom_id, 200, body)


def failure_line(fingerprint: str, key: bytes, custom_id: str | None, error: CorunError) -> dict[str, Json]:
    """The line of a failure. `key` is what its id is made of, beside the fingerprint."""
    is_request = isinstance(error, InvalidRequest)
    body: dict[str, Json] = {
        "error": {
            "message": error.message,
            "type": "invalid_request_error" if is_request else "server_error",
            "param": error.field if isinstance(error, InvalidRequest) else None,
            "code": error.reason.lower(),
        }
    }
    return _line(_name(fingerprint, key), custom_id, status_of(error), body)


def status_of(error: CorunError) -> int:
    """400 for what the request itself is to blame for; 504 and 500 for what another try may answer."""
    if isinstance(error, InvalidRequest):
        return 400
    return 504 if isinstance(error, DeadlineExceeded) else 500


def encode(line: dict[str, Json]) -> bytes:
    """Strict JSON in UTF-8, with its line end."""
    try:
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A lone surrogate in a custom_id goes out as it came in: Python's escape of one is JSON's.
        return _ENCODER.encode(line).encode("utf-8", "backslashreplace") + b"\n"


def _line(name: str, custom_id: str | None, status: int, body: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": None,
    }


def _name(fingerprint: str, key: bytes) -> str:
    return hashlib.sha256(fingerprint.encode() + key).hexdigest()[:24]


def _completion_choice(
    choice: Choice, with_ids: bool, echoed: ScoredPrompt | None, wanted: Json
) -> dict[str, Json]:
    """A completion's choice. The logprobs of an echoed prompt come before the answer's, `wanted` of each."""
    logprobs: dict[str, Json] | None = None
    if choice.logprobs is not None:
        rows: list[tuple[int, TokenLogprobs | None]] = list(
            zip(choice.token_ids, choice.logprobs, strict=True)
        )
        if echoed is not None and isinstance(wanted, int):
            rows[:0] = [(token_id, entry and _cut(entry, wanted)) for token_id, entry in _prompt_rows(echoed)]
        logprobs = {
            "tokens": [_token(token_id) for token_id, _ in rows],
            "token_logprobs": [None if entry is None else _number(entry.sampled) for _, entry in rows],
            "top_logprobs": [None if entry is None else _top(token_id, entry) for token_id, entry in rows],
        }
    return {"index": choice.index, "text": choice.text, "logprobs": logprobs, **_ending(choice, with_ids)}


def _chat_choice(choice: Choice, with_ids: bool) -> dict[str, Json]:
    logprobs: dict[str, Json] | None = None
    if choice.logprobs is not None:
        rows = zip(choice.token_ids, choice.logprobs, strict=True)
        content: list[Json] = [
            _entry(token_id, entry.sampled) | {"top_logprobs": [_entry(*pair) for pair in entry.top]}
            for token_id, entry in rows
        ]
        logprobs = {"content": content, "refusal": None}
    message: dict[str, Json] = {"role": "assistant", "content": choice.text, "refusal": None}
    return {"index": choice.index, "message": message, "logprobs": logprobs, **_ending(choice, with_ids)}


def _ending(choice: Choice, with_ids: bool) -> dict[str, Json]:
    ids: dict[str, Json] = {"token_ids": list(choice.token_ids)} if with_ids else {}
    return {"finish_reason": choice.finish_reason.value, "stop_reason": choice.stop_reason, **ids}


def _prompt_logprobs(prompt: ScoredPrompt, wanted: int) -> Json:
    """As vLLM has them: null for the first token, then by token id, the prompt's own token among them."""
    rows: list[Json] = []
    for token_id, entry in _prompt_rows(prompt):
        if entry is None:
            rows.append(None)
            continue
        ranked = [*((i, n, logprob) for n, (i, logprob) in enumerate(entry.top[:wanted], 1))]
        ranked.append((token_id, entry.rank, entry.sampled))
        rows.append(
            {
                str(i): {"logprob": _number(logprob), "rank": rank, "decoded_token": None}
                for i, rank, logprob in ranked
            }
        )
    return rows


def _prompt_rows(prompt: ScoredPrompt) -> list[tuple[int, TokenLogprobs | None]]:
    return list(zip(prompt.token_ids, (None, *prompt.logprobs), strict=True))


def _cut(entry: TokenLogprobs, wanted: int) -> TokenLogprobs:
    return replace(entry, top=entry.top[:wanted])


def _top(token_id: int, entry: TokenLogprobs) -> dict[str, Json]:
    """The likeliest tokens and the sampled one, as OpenAI has them: up to one more than asked for."""
    return {_token(i): _number(logprob) for i, logprob in (*entry.top, (token_id, entry.sampled))}


def _entry(token_id: int, logprob: float) -> dict[str, Json]:
    return {"token": _token(token_id), "logprob": _number(logprob), "bytes": None}


def _token(token_id: int) -> str:
    return f"token_id:{token_id}"


def _number(logprob: float) -> float | None:
    if math.isnan(logprob):
        return None
    return max(logprob, MINUS_INFINITY) if logprob == -math.inf else logprob
