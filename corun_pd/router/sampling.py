"""How a request's tokens are drawn: every field resolved, every fault named by its wire field.

Ranges are vLLM's, and so is what it does silently to a few values (a tiny temperature is raised, greedy
sampling forgets top_p, top_k and min_p): done here too, so that all paths draw alike.
"""

import math
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from corun_pd.core import SEED_LIMIT, SamplingParams
from corun_pd.errors import InvalidRequest
from corun_pd.router.structured import structured_output
from corun_pd.router.text import TextModel
from corun_pd.v1 import sampling_pb2

__all__ = ["Limits", "resolve_sampling"]

#: What vLLM's V2 runner has room for; more would end an engine and not a request. Its 128 stop tokens hold
#: the model's own too.
MAX_BIASES: Final = 1024
MAX_ALLOWED_TOKEN_IDS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 112
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_TOKENS: Final = 1024
MAX_BAD_WORD_CHARACTERS: Final = 1024

#: vLLM's bounds: positive temperatures below the first are raised to it, those above the second refused.
LEAST_TEMPERATURE: Final = 0.01
MOST_TEMPERATURE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the fleet's engines can take. The same on all of them, by contract."""

    max_model_tokens: int
    vocabulary: int
    max_logprobs: int


def resolve_sampling(
    message: sampling_pb2.SamplingParams,
    max_tokens: int,
    samples: int,
    text: TextModel,
    limits: Limits,
) -> SamplingParams:
    """Sample 0's. Raises InvalidRequest that names the field."""
    defaults = text.defaults
    temperature = _number(message, "temperature", 0, MOST_TEMPERATURE, defaults.temperature, 1.0)
    if 0 < temperature < LEAST_TEMPERATURE:
        temperature = LEAST_TEMPERATURE
    top_p = _number(message, "top_p", 0, 1, defaults.top_p, 1.0, above=True)
    min_p = _number(message, "min_p", 0, 1, defaults.min_p, 0.0)
    top_k = message.top_k if message.HasField("top_k") else (defaults.top_k or 0)
    if top_k < -1:
        raise InvalidRequest("sampling.top_k", f"must be -1 or 0 (all) or at least 1, got {top_k}")
    if temperature == 0:
        if samples > 1:
            problem = f"must be 1 with temperature 0, where all samples are equal; got {samples}"
            raise InvalidRequest("sample_count", problem)
        top_p, top_k, min_p = 1.0, 0, 0.0
    if message.min_tokens > max_tokens:
        problem = f"{message.min_tokens} is more than max_tokens, which is {max_tokens}"
        raise InvalidRequest("sampling.min_tokens", problem)
    logprobs, prompt_logprobs = (
        _logprobs(message, n, limits) for n in ("logprob_count", "prompt_logprob_count")
    )
    for token_id, bias in message.logit_bias.items():
        if not -100 <= bias <= 100:
            raise InvalidRequest("sampling.logit_bias", f"must be in [-100, 100], got {bias} for {token_id}")
    _token_ids("sampling.logit_bias", message.logit_bias, MAX_BIASES, limits)
    _token_ids("sampling.stop_token_ids", message.stop_token_ids, MAX_STOP_TOKEN_IDS, limits)
    _token_ids("sampling.allowed_token_ids", message.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS, limits)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=_seed(message, samples),
        min_tokens=message.min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=max(top_k, 0),
        min_p=min_p,
        presence_penalty=_number(message, "presence_penalty", -2, 2, None, 0.0),
        frequency_penalty=_number(message, "frequency_penalty", -2, 2, None, 0.0),
        repetition_penalty=_number(
            message, "repetition_penalty", 0, math.inf, defaults.repetition_penalty, 1.0, above=True
        ),
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(dict.fromkeys(message.stop_token_ids)),
        ignore_eos=message.ignore_eos,
        logprobs=logprobs,
        allowed_token_ids=tuple(dict.fromkeys(message.allowed_token_ids)),
        bad_words=_bad_words(message, text, limits),
        structured_output=structured_output(message),
        prompt_logprobs=prompt_logprobs,
    )


def _logprobs(message: sampling_pb2.SamplingParams, name: str, limits: Limits) -> int | None:
    if not message.HasField(name):
        return None
    count: int = getattr(message, name)
    if count > limits.max_logprobs:
        raise InvalidRequest(f"sampling.{name}", f"must be at most {limits.max_logprobs}, got {count}")
    return count


def _bad_words(
    message: sampling_pb2.SamplingParams, text: TextModel, limits: Limits
) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, and those that spell it after a space where that is another first token."""
    field = "sampling.bad_words"
    words: dict[tuple[int, ...], None] = {}
    for word in message.bad_words:
        if not 1 <= len(word) <= MAX_BAD_WORD_CHARACTERS:
            problem = f"must have 1 to {MAX_BAD_WORD_CHARACTERS} characters, got one of {len(word)}"
            raise InvalidRequest(field, problem)
        spellings = text.spellings(word)
        if not spellings:
            raise InvalidRequest(field, f"{word!r} has no tokens")
        words.update(dict.fromkeys(spellings))
    for at, sequence in enumerate(message.bad_word_token_ids):
        name = f"sampling.bad_word_token_ids[{at}]"
        if not sequence.ids:
            raise InvalidRequest(name, "empty")
        _token_ids(name, sequence.ids, MAX_BAD_WORD_TOKENS, limits)
        words[tuple(sequence.ids)] = None
    if len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_WORD_TOKENS:
        problem = f"at most {MAX_BAD_WORDS} spellings and {MAX_BAD_WORD_TOKENS} tokens in all"
        raise InvalidRequest(field, f"{problem}, got {len(words)} and {sum(map(len, words))}")
    return tuple(words)


def _number(
    message: sampling_pb2.SamplingParams,
    name: str,
    low: float,
    high: float,
    of_model: float | None,
    otherwise: float,
    *,
    above: bool = False,
) -> float:
    """A field's value: the request's, the model's or the usual one. With `above`, `low` is excluded."""
    if not message.HasField(name):
        return otherwise if of_model is None else float(of_model)
    value: float = getattr(message, name)
    if not (math.isfinite(value) and low <= value <= high) or (above and value == low):
        bounds = f"{'above' if above else 'at least'} {low:g}"
        bounds += "" if high == math.inf else f" and at most {high:g}"
        raise InvalidRequest(f"sampling.{name}", f"must be a finite number {bounds}, got {value}")
    return value


def _token_ids(field: str, token_ids: Collection[int], most: int, limits: Limits) -> None:
    if len(token_ids) > most:
        raise InvalidRequest(field, f"at most {most}, got {len(token_ids)}")
    if token_ids and max(token_ids) >= limits.vocabulary:
        problem = f"{max(token_ids)} is no token id: the vocabulary has {limits.vocabulary}"
        raise InvalidRequest(field, problem)


def _seed(message: sampling_pb2.SamplingParams, samples: int) -> int:
    """The seed of sample 0, such that the last sample's is below the limit too."""
    if not message.HasField("seed"):
        return secrets.randbelow(SEED_LIMIT - samples)
    if message.seed + samples > SEED_LIMIT:
        problem = f"must be below {SEED_LIMIT} for each of {samples} samples, got {message.seed}"
        raise InvalidRequest("sampling.seed", problem)
    return message.seed
