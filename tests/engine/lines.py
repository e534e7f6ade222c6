"""Requests as lines of a batch file, and samples of the answers' lines as those that come by SDK."""

import json
import math
import struct
from typing import Any

from corun_pd.client import Choice, GenerationRequest, GenerationResult
from corun_pd.core import StructuredOutput, Syntax, TokenLogprobs

NAMES = {
    "allowed_token_ids": "allowed_token_ids",
    "bad_words": "bad_words",
    "echo": "echo",
    "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
    "include_stop": "include_stop_str_in_output",
    "logprobs": "logprobs",
    "max_tokens": "max_tokens",
    "min_p": "min_p",
    "min_tokens": "min_tokens",
    "n": "n",
    "presence_penalty": "presence_penalty",
    "prompt_logprobs": "prompt_logprobs",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}

SYNTAXES = {
    Syntax.CHOICES: "choice",
    Syntax.GRAMMAR: "grammar",
    Syntax.JSON_SCHEMA: "json",
    Syntax.REGEX: "regex",
}


def as_line(at: int, request: GenerationRequest, model: str) -> dict[str, Any]:
    """The request as a line of a batch file."""
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    body: dict[str, Any] = {"model": model, "prompt": prompt, "return_token_ids": True}
    for ours, theirs in NAMES.items():
        value = getattr(request, ours)
        if value not in (None, ()):
            body[theirs] = list(value) if isinstance(value, tuple) else value
    body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    if request.structured_output is not None:
        body["structured_outputs"] = as_structured_outputs(request.structured_output)
    return {"custom_id": f"r{at}", "method": "POST", "url": "/v1/completions", "body": body}


def as_structured_outputs(output: StructuredOutput) -> dict[str, Any]:
    """vLLM's form of a constraint."""
    spec = json.loads(output.spec) if output.syntax in (Syntax.CHOICES, Syntax.JSON_SCHEMA) else output.spec
    return {SYNTAXES[output.syntax]: spec}


def in_file(body: dict[str, Any]) -> list[tuple[object, ...]]:
    """The samples of an output line: everything but what the format rounds off."""
    return [
        (
            *(choice[name] for name in ("index", "text", "token_ids", "finish_reason", "stop_reason")),
            _logprobs_in_file(choice["logprobs"]),
            _prompt_in_file(choice.get("prompt_logprobs")),
        )
        for choice in body["choices"]
    ]


def in_answer(request: GenerationRequest, result: GenerationResult) -> list[tuple[object, ...]]:
    """The same of an answer that came by SDK."""
    prompt = None
    if result.prompt is not None and request.prompt_logprobs is not None:
        cut = request.prompt_logprobs
        prompt = [entry and _by_id(token, entry, cut) for token, entry in _prompt_rows(result)]
    return [
        (
            *(choice.index, choice.text, list(choice.token_ids)),
            *(choice.finish_reason.value, choice.stop_reason),
            _logprobs_in_answer(request, result, choice),
            prompt,
        )
        for choice in result.choices
    ]


def _logprobs_in_file(given: dict[str, Any] | None) -> object:
    if given is None:
        return None
    tops = [top and {token: bits(value) for token, value in top.items()} for top in given["top_logprobs"]]
    return [bits(value) for value in given["token_logprobs"]], tops


def _logprobs_in_answer(request: GenerationRequest, result: GenerationResult, choice: Choice) -> object:
    if choice.logprobs is None:
        return None
    rows: list[tuple[int, TokenLogprobs | None]] = list(zip(choice.token_ids, choice.logprobs, strict=True))
    if request.echo:
        rows[:0] = _prompt_rows(result)
    tops = [
        None
        if entry is None
        else {
            f"token_id:{token}": bits(value)
            for token, value in (*entry.top[: request.logprobs], (sampled, entry.sampled))
        }
        for sampled, entry in rows
    ]
    return [None if entry is None else bits(entry.sampled) for _, entry in rows], tops


def _prompt_rows(result: GenerationResult) -> list[tuple[int, TokenLogprobs | None]]:
    """The prompt's tokens and their entries; the first has none."""
    assert result.prompt is not None
    return list(zip(result.prompt.token_ids, (None, *result.prompt.logprobs), strict=True))


def _by_id(token: int, entry: TokenLogprobs, cut: int) -> dict[str, tuple[str | None, int]]:
    ranked = [(i, rank, value) for rank, (i, value) in enumerate(entry.top[:cut], 1)]
    return {str(i): (bits(v), rank) for i, rank, v in (*ranked, (token, entry.rank, entry.sampled))}


def _prompt_in_file(rows: list[dict[str, dict[str, Any]] | None] | None) -> object:
    if rows is None:
        return None
    return [row and {i: (bits(e["logprob"]), e["rank"]) for i, e in row.items()} for row in rows]


def bits(value: float | None) -> str | None:
    """A float32's bits. The file writes -inf as OpenAI does, and what is no number as null."""
    if value is None or math.isnan(value):
        return None
    return struct.pack(">f", max(value, -9999.0)).hex()
