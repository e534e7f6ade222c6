"""A request made whole: every field resolved, every fault named by its wire field before an engine sees it.

`router.sampling` resolves how tokens are drawn.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from corun_pd.core import SEED_LIMIT, SamplingParams
from corun_pd.errors import InvalidRequest, UnsupportedParameter
from corun_pd.router.company import Company
from corun_pd.router.policy import Route
from corun_pd.router.sampling import Limits, resolve_sampling
from corun_pd.router.text import TextModel
from corun_pd.v1 import router_pb2, sampling_pb2

__all__ = ["Task", "resolve"]

#: Limits that the engine does not set.
MAX_SAMPLES: Final = 1024
MAX_STOP_STRINGS: Final = 64
MAX_STOP_CHARACTERS: Final = 1024
MAX_NAME_CHARACTERS: Final = 128

_ROUTES: Final = {
    router_pb2.ROUTE_UNSPECIFIED: None,
    router_pb2.ROUTE_DISAGGREGATED: Route.DISAGGREGATED,
    router_pb2.ROUTE_COLOCATED: Route.COLOCATED,
}


@dataclass(frozen=True, slots=True)
class Task:
    """A generation with everything decided. Sample i draws with `seeds[i]`; `sampling.seed` is the first.

    `route` None leaves it to the fleet. `text` says whether the answer has text; stop strings are watched
    for all the same. `echo` is what the text of each sample begins with.
    """

    generation_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    seeds: Sequence[int]
    stops: tuple[str, ...]
    include_stop: bool
    route: Route | None
    text: bool
    echo: str = ""


async def resolve(
    message: router_pb2.Generation,
    text: TextModel,
    limits: Limits,
    completion_tokens: int,
    company: Company | None = None,
) -> Task:
    """Raises InvalidRequest that names the field. `completion_tokens` is max_tokens when it is unset.

    In a company the prompt is that of its first generation.
    """
    if message.route not in _ROUTES:
        raise InvalidRequest("route", f"{message.route} is no route")
    if len(message.generation_id) > MAX_NAME_CHARACTERS:
        raise InvalidRequest("generation_id", f"longer than {MAX_NAME_CHARACTERS} characters")
    samples = message.sample_count if message.HasField("sample_count") else len(message.seeds) or 1
    if not 1 <= samples <= MAX_SAMPLES:
        raise InvalidRequest("sample_count", f"must be in [1, {MAX_SAMPLES}], got {samples}")
    if company is None:
        prompt, field = await _prompt(message, text, limits)
    else:
        if message is not company.first and message.WhichOneof("prompt") is not None:
            raise InvalidRequest("prompt", "set; a sibling's is that of the generation that it came with")
        prompt, field = await company.prompt(lambda first: _prompt(first, text, limits))
    origin = message if company is None else company.first
    max_tokens = _max_tokens(message.sampling, field, len(prompt), limits, completion_tokens)
    sampling = resolve_sampling(message.sampling, max_tokens, samples, text, limits)
    seeds: Sequence[int] = range(sampling.seed, sampling.seed + samples)
    if message.seeds:
        seeds = _seeds(message, samples)
        sampling = replace(sampling, seed=seeds[0])
    return Task(
        generation_id=message.generation_id or f"gen-{secrets.token_hex(8)}",
        prompt=prompt,
        sampling=sampling,
        seeds=seeds,
        stops=_stops(message.sampling.stop_strings),
        include_stop=message.sampling.include_stop,
        route=_ROUTES[message.route],
        text=not message.tokens_only,
        echo=_echo(message, origin, text, prompt) if message.echo else "",
    )


def _seeds(message: router_pb2.Generation, samples: int) -> Sequence[int]:
    if len(message.seeds) != samples:
        raise InvalidRequest("seeds", f"{len(message.seeds)} seeds for {samples} samples")
    if message.sampling.HasField("seed"):
        raise InvalidRequest("seeds", "set beside sampling.seed; give one of them")
    if max(message.seeds) >= SEED_LIMIT:
        raise InvalidRequest("seeds", f"must be in [0, 2^63), got {max(message.seeds)}")
    return tuple(message.seeds)


def _echo(
    message: router_pb2.Generation, origin: router_pb2.Generation, text: TextModel, prompt: Sequence[int]
) -> str:
    """The prompt as text; `origin` has it."""
    if message.tokens_only:
        raise InvalidRequest("echo", "needs text, and tokens_only leaves it out")
    if origin.WhichOneof("prompt") == "chat":
        raise UnsupportedParameter("echo", "is for plain prompts; a chat's text is its template's")
    return origin.text or text.decode(prompt)


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


def _stops(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest("sampling.stop_strings", f"at most {MAX_STOP_STRINGS}, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            problem = f"must have 1 to {MAX_STOP_CHARACTERS} characters, got one of {len(stop)}"
            raise InvalidRequest("sampling.stop_strings", problem)
    return tuple(stops)
