"""A request made whole: every field resolved, every fault named by its wire field before an engine sees it.

Ranges are vLLM's, and so is what it does silently to a few values (a tiny temperature is raised, greedy
sampling forgets top_p, top_k and min_p): done here too, so that all paths draw alike.
"""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from corun_pd.core import SEED_LIMIT, SamplingParams
from corun_pd.errors import InvalidRequest
from corun_pd.router.policy import Route
from corun_pd.router.text import GenerationDefaults, TextModel
from corun_pd.v1 import router_pb2, sampling_pb2

__all__ = ["Limits", "Task", "resolve"]

#: Limits that the engine does not set.
MAX_SAMPLES: Final = 1024
MAX_STOP_STRINGS: Final = 64
MAX_STOP_CHARACTERS: Final = 1024
MAX_NAME_CHARACTERS: Final = 128

#: vLLM's bounds: positive temperatures below the first are raised to it, those above the second refused.
LEAST_TEMPERATURE: Final = 0.01
MOST_TEMPERATURE: Final = 2.0

_ROUTES: Final = {
    router_pb2.ROUTE_UNSPECIFIED: None,
    router_pb2.ROUTE_DISAGGREGATED: Route.DISAGGREGATED,
    router_pb2.ROUTE_COLOCATED: Route.COLOCATED,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the fleet's engines can take. The same on all of them, by contract."""

    max_model_tokens: int
    vocabulary: int
    max_logprobs: int


@dataclass(frozen=True, slots=True)
class Task:
    """A generation with everything decided. `sampling.seed` is that of sample 0.

    `route` None leaves it to the fleet. `text` says whether the answer has text; stop strings are watched
    for all the same.
    """

    generation_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    samples: int
    stops: tuple[str, ...]
    include_stop: bool
    route: Route | None
    text: bool


async def resolve(
    message: router_pb2.Generation, text: TextModel, limits: Limits, completion_tokens: int
) -> Task:
    """Raises InvalidRequest that names the field. `completion_tokens` is max_tokens when it is unset."""
    if message.route not in _ROUTES:
        raise InvalidRequest("route", f"{message.route} is no route")
    if len(message.generation_id) > MAX_NAME_CHARACTERS:
        raise InvalidRequest("generation_id", f"longer than {MAX_NAME_CHARACTERS} characters")
    samples = message.sample_count if message.HasField("sample_count") else 1
    if not 1 <= samples <= MAX_SAMPLES:
        raise InvalidRequest("sample_count", f"must be in [1, {MAX_SAMPLES}], got {samples}")
    prompt, field = await _prompt(message, text, limits)
    max_tokens = _max_tokens(message.sampling, field, len(prompt), limits, completion_tokens)
    sampling = _sampling(message.sampling, max_tokens, samples, text.defaults, limits)
    return Task(
        generation_id=message.generation_id or f"gen-{secrets.token_hex(8)}",
        prompt=prompt,
        sampling=sampling,
        samples=samples,
        stops=_stops(message.sampling.stop_strings),
        include_stop=message.sampling.include_stop,
        route=_ROUTES[message.route],
        text=not message.tokens_only,
    )


async def _prompt(
    message: router_pb2.Generation, text: TextModel, limits: Limits
) -> tuple[Sequence[int], str]:
    """The token ids, and the field that they came from."""
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("prompt", "unset; one of text, token_ids and chat is needed")
    if kind == "token_ids":
        prompt = list(message.token_ids.ids)
        if prompt and max(prompt) >= limits.vocabulary:
            problem = f"{max(prompt)} is no token id: the vocabulary has {limits.vocabulary}"
            raise InvalidRequest("token_ids.ids", problem)
    elif kind == "text":
        prompt = await text.encode(message.text)
    else:
        if not message.chat.messages:
            raise InvalidRequest("chat.messages", "empty")
        turns = [{"role": turn.role, "content": turn.content} for turn in message.chat.messages]
        prompt = await text.encode_chat(turns)
    if not prompt:
        raise InvalidRequest(kind, "empty: a prompt needs at least one token")
    return prompt, kind


def _max_tokens(
    message: sampling_pb2.SamplingParams, field: str, prompt: int, limits: Limits, completion_tokens: int
) -> int:
    room = limits.max_model_tokens - prompt
    if room < 1:
        raise InvalidRequest(
            field,
            f"the prompt has {prompt} tokens; prompt and answer together may have {limits.max_model_tokens}",
        )
    if not message.HasField("max_tokens"):
        return room if field == "chat" else min(room, completion_tokens)
    if message.max_tokens < 1:
        raise InvalidRequest("sampling.max_tokens", "must be at least 1, got 0")
    if message.max_tokens > room:
        raise InvalidRequest(
            "sampling.max_tokens",
            f"{prompt} prompt tokens and max_tokens {message.max_tokens} make {prompt + message.max_tokens}, "
            f"more than the model's limit of {limits.max_model_tokens}",
        )
    return message.max_tokens


def _sampling(
    message: sampling_pb2.SamplingParams,
    max_tokens: int,
    samples: int,
    defaults: GenerationDefaults,
    limits: Limits,
) -> SamplingParams:
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
    if message.HasField("logprob_count") and message.logprob_count > limits.max_logprobs:
        problem = f"must be at most {limits.max_logprobs}, got {message.logprob_count}"
        raise InvalidRequest("sampling.logprob_count", problem)
    for token_id, bias in message.logit_bias.items():
        if not -100 <= bias <= 100:
            raise InvalidRequest("sampling.logit_bias", f"must be in [-100, 100], got {bias} for {token_id}")
    _in_vocabulary("sampling.logit_bias", message.logit_bias, limits)
    _in_vocabulary("sampling.stop_token_ids", message.stop_token_ids, limits)
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
        logprobs=message.logprob_count if message.HasField("logprob_count") else None,
    )


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


def _in_vocabulary(field: str, token_ids: Collection[int], limits: Limits) -> None:
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


def _stops(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest("sampling.stop_strings", f"at most {MAX_STOP_STRINGS}, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            problem = f"must have 1 to {MAX_STOP_CHARACTERS} characters, got one of {len(stop)}"
            raise InvalidRequest("sampling.stop_strings", problem)
    return tuple(stops)
