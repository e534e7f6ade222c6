"""A generation as the client asks for it."""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from corun_pd.client import checks
from corun_pd.core import SEED_LIMIT, StructuredOutput, Syntax
from corun_pd.errors import InvalidRequest

__all__ = [
    "ChatMessage",
    "GenerationRequest",
    "Options",
    "Own",
    "Prompt",
    "Route",
    "build_request",
    "check_own",
]

Prompt = str | Sequence[int]


class Route(enum.StrEnum):
    """Which instances may run a generation. Unset: apart when the fleet can, colocated otherwise."""

    DISAGGREGATED = "disaggregated"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat. `role` is system, user, assistant or tool."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """What `generate` and `stream` take beside the prompt. None and absent both mean "unset"; 0 is 0.

    messages            a chat, instead of a prompt; rendered by the model's template at the router
    max_tokens          the most tokens to generate; unset: 16, for a chat the room that is left
    min_tokens          no end-of-sequence or stop token is drawn before this many
    temperature         0 is greedy; unset: the model's generation config, else 1
    top_p, min_p        nucleus mass in (0, 1]; least probability relative to the likeliest, in [0, 1]
    top_k               how many of the likeliest tokens are kept; 0 and -1 keep all
    seed                in [0, 2^63); unset: the router mints one and returns it
    n                   samples; sample i draws with seed + i
    stop                texts that end a generation; left out of its text unless `include_stop`
    stop_token_ids      token ids that end a generation
    ignore_eos          the model's end-of-sequence tokens do not end it
    logprobs            0 for the sampled token's alone, k for the k likeliest beside it
    prompt_logprobs     the same of the prompt's tokens but the first
    allowed_token_ids   the only token ids that may be drawn; not empty
    bad_words           texts that are never drawn, at the start of a word or in one
    structured_output   what the text must fit, as {"json_schema": a mapping or JSON text}, {"regex": ...},
                        {"choices": [...]} or {"grammar": EBNF or Lark}
    echo                the text begins with the prompt's; not for chats
    presence_penalty, frequency_penalty, repetition_penalty, logit_bias
    route               which instances may run it
    tokens_only         the answer has no text
    generation_id       its name in logs and errors; unset: the router mints one
    """

    messages: Sequence[ChatMessage | Mapping[str, str]] | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    n: int | None
    stop: str | Sequence[str] | None
    include_stop: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    prompt_logprobs: int | None
    allowed_token_ids: Sequence[int] | None
    bad_words: str | Sequence[str] | None
    structured_output: StructuredOutput | Mapping[str, object] | None
    echo: bool | None
    route: Route | str | None
    tokens_only: bool | None
    generation_id: str | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request, as transports take it. Exactly one of `prompt` and `messages` is set."""

    prompt: str | tuple[int, ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    echo: bool = False
    route: Route | None = None
    tokens_only: bool = False
    generation_id: str = ""


def build_request(prompt: Prompt | None, options: Options) -> GenerationRequest:
    """Checks what only the client can and normalizes the rest.

    Raises InvalidRequest that names the wire field, and TypeError for an option that does not exist.
    """
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise TypeError(f"no such option: {', '.join(unknown)}")
    messages = options.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidRequest("prompt", "give either a prompt or messages")
    return GenerationRequest(
        prompt=None if prompt is None else _prompt(prompt),
        messages=None if messages is None else _messages(messages),
        max_tokens=_count("sampling.max_tokens", options.get("max_tokens")),
        min_tokens=_count("sampling.min_tokens", options.get("min_tokens")),
        temperature=checks.real("sampling.temperature", options.get("temperature")),
        top_p=checks.real("sampling.top_p", options.get("top_p")),
        top_k=checks.integer("sampling.top_k", options.get("top_k"), -(1 << 31), (1 << 31) - 1),
        min_p=checks.real("sampling.min_p", options.get("min_p")),
        seed=checks.integer("sampling.seed", options.get("seed"), 0, SEED_LIMIT - 1),
        n=_count("sample_count", options.get("n")),
        stop=checks.strings("sampling.stop_strings", options.get("stop")),
        include_stop=checks.flag("sampling.include_stop", options.get("include_stop")),
        stop_token_ids=checks.token_ids("sampling.stop_token_ids", options.get("stop_token_ids")),
        ignore_eos=checks.flag("sampling.ignore_eos", options.get("ignore_eos")),
        logprobs=_count("sampling.logprob_count", options.get("logprobs")),
        presence_penalty=checks.real("sampling.presence_penalty", options.get("presence_penalty")),
        frequency_penalty=checks.real("sampling.frequency_penalty", options.get("frequency_penalty")),
        repetition_penalty=checks.real("sampling.repetition_penalty", options.get("repetition_penalty")),
        logit_bias=checks.logit_bias("sampling.logit_bias", options.get("logit_bias")),
        prompt_logprobs=_count("sampling.prompt_logprob_count", options.get("prompt_logprobs")),
        allowed_token_ids=_allowed(options.get("allowed_token_ids")),
        bad_words=checks.strings("sampling.bad_words", options.get("bad_words")),
        structured_output=_structured_output(options.get("structured_output")),
        echo=checks.flag("echo", options.get("echo")) or False,
        route=_route(options.get("route")),
        tokens_only=checks.flag("tokens_only", options.get("tokens_only")) or False,
        generation_id=checks.text("generation_id", options.get("generation_id") or ""),
    )


class Own(TypedDict):
    """What requests that are alike otherwise have of their own."""

    prompt: str | tuple[int, ...] | None
    messages: tuple[ChatMessage, ...] | None
    seed: int | None
    generation_id: str


def check_own(
    prompt: Prompt | None,
    messages: Sequence[ChatMessage | Mapping[str, str]] | None,
    seed: int | None,
    generation_id: str,
) -> Own:
    """These fields as `build_request` would have them; it raises what that would raise."""
    return {
        "prompt": None if prompt is None else _prompt(prompt),
        "messages": None if messages is None else _messages(messages),
        "seed": checks.integer("sampling.seed", seed, 0, SEED_LIMIT - 1),
        "generation_id": checks.text("generation_id", generation_id),
    }


def _count(name: str, value: object) -> int | None:
    return checks.integer(name, value, 0, checks.UINT32_LIMIT - 1)


def _allowed(value: object) -> tuple[int, ...]:
    allowed = checks.token_ids("sampling.allowed_token_ids", value)
    if value is not None and not allowed:
        raise InvalidRequest("sampling.allowed_token_ids", "must not be empty: no token could be drawn")
    return allowed


def _structured_output(value: object) -> StructuredOutput | None:
    """The constraint. A schema is written in the order that it is given in, which the text will have."""
    field = "sampling.structured_output"
    if value is None or isinstance(value, StructuredOutput):
        return value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InvalidRequest(field, f"must have one of {', '.join(Syntax)}, not {value!r:.80}")
    ((name, spec),) = value.items()
    if name not in set(Syntax):
        raise InvalidRequest(f"{field}.{name!s:.80}", f"is none of {', '.join(Syntax)}")
    syntax, field = Syntax(name), f"{field}.{name}"
    if syntax is Syntax.JSON_SCHEMA and isinstance(spec, Mapping):
        try:
            return StructuredOutput(syntax, json.dumps(spec, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(field, f"is not JSON: {error}") from error
    if syntax is Syntax.CHOICES:
        if isinstance(spec, str):
            raise InvalidRequest(field, "must be a list of texts")
        return StructuredOutput(syntax, json.dumps(checks.strings(field, spec)))
    return StructuredOutput(syntax, checks.text(field, spec))


def _prompt(prompt: Prompt) -> str | tuple[int, ...]:
    return checks.text("text", prompt) if isinstance(prompt, str) else checks.token_ids("token_ids", prompt)


def _messages(messages: Sequence[ChatMessage | Mapping[str, str]]) -> tuple[ChatMessage, ...]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest("chat.messages", f"must be a list of messages, not {type(messages).__name__}")
    return tuple(_message(f"chat.messages[{at}]", message) for at, message in enumerate(messages))


def _message(name: str, message: object) -> ChatMessage:
    if isinstance(message, ChatMessage):
        message = {"role": message.role, "content": message.content}
    if not isinstance(message, Mapping):
        raise InvalidRequest(name, f"must have a role and a content, not be {message!r:.80}")
    for key in message.keys() - {"role", "content"}:
        raise InvalidRequest(f"{name}.{key}", "is not a part of a message here; role and content are")
    return ChatMessage(*(checks.text(f"{name}.{key}", message.get(key)) for key in ("role", "content")))


def _route(value: object) -> Route | None:
    if value is None:
        return None
    try:
        return Route(checks.text("route", value))
    except ValueError:
        raise InvalidRequest("route", f"must be one of {', '.join(Route)}, not {value!r:.80}") from None
