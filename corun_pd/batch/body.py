"""A line's body: OpenAI's and vLLM's fields to the client's options.

Every field is served exactly, ignored because it cannot change an answer, or refused by name. null is
"unset" for each of them.
"""

from collections.abc import Mapping
from typing import Final, cast

from corun_pd.batch.line import Endpoint, Json
from corun_pd.batch.structured import structured_output
from corun_pd.client import GenerationRequest, Options, Prompt, build_request
from corun_pd.errors import InvalidRequest, UnsupportedParameter

__all__ = ["IGNORED", "body_to_request", "chat_messages", "openai_error", "plain_prompt"]

#: Served, by the client's name of it.
SERVED: Final[Mapping[str, str]] = {
    "allowed_token_ids": "allowed_token_ids",
    "bad_words": "bad_words",
    "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
    "include_stop_str_in_output": "include_stop",
    "logit_bias": "logit_bias",
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

#: Ignored: they name and bill a request, and cannot change its answer.
IGNORED: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "session_id",
        "user",
    }
)

#: Accepted at the values that change nothing, and refused at others.
NEUTRAL: Final[Mapping[str, tuple[Json, ...]]] = {
    "cache_salt": (),
    "ec_transfer_params": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "mm_payload": ("tensors",),
    "priority": (0,),
    "repetition_detection": (),
    "return_mm_kwargs": (),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (True,),
    "routed_experts_prompt_start": (0,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream": (False,),
    "stream_interval": (),
    "stream_options": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
    "watermarking": (False,),
}
NEUTRAL_BY_ENDPOINT: Final[Mapping[Endpoint, Mapping[str, tuple[Json, ...]]]] = {
    Endpoint.COMPLETIONS: {
        "add_special_tokens": (True,),
        "prompt_embeds": (),
        "suffix": ("",),
    },
    Endpoint.CHAT: {
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "documents": (),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "include_reasoning": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "prediction": (),
        "reasoning_effort": (),
        "return_prompt_text": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    },
}
_BOTH: Final = frozenset({"model", "response_format", "return_token_ids", "structured_outputs"})
OWN: Final[Mapping[Endpoint, frozenset[str]]] = {
    Endpoint.COMPLETIONS: frozenset({"best_of", "echo", "logprobs", "prompt"}) | _BOTH,
    Endpoint.CHAT: frozenset({"logprobs", "max_completion_tokens", "messages", "top_logprobs"}) | _BOTH,
}


def body_to_request(
    endpoint: Endpoint, body: Mapping[str, Json], defaults: Options | None = None
) -> GenerationRequest:
    """The request, checked as the client checks it. Raises InvalidRequest that names the body's field.

    `defaults` are options that hold where the body does not say otherwise.
    """
    given = {name: value for name, value in body.items() if value is not None}
    _check_names(endpoint, given)
    options: dict[str, Json | Mapping[int, Json]] = {
        ours: given[theirs] for theirs, ours in SERVED.items() if theirs in given
    }
    if "logit_bias" in given:
        options["logit_bias"] = _logit_bias(given["logit_bias"])
    if (constraint := structured_output(given)) is not None:
        options["structured_output"] = constraint
    prompt: Json = None
    if endpoint is Endpoint.COMPLETIONS:
        prompt = plain_prompt(given)
        options["logprobs"] = given.get("logprobs")
        if "echo" in given:
            options["echo"] = given["echo"]
        if given.get("echo") is True and "logprobs" in given:
            options["prompt_logprobs"] = _echoed_logprobs(given)
        if given.get("best_of", options.get("n", 1)) != options.get("n", 1):
            raise UnsupportedParameter("best_of", "can be served when it equals n alone")
    else:
        options["messages"] = chat_messages(given)
        options["logprobs"] = _chat_logprobs(given)
        options["max_tokens"] = _max_completion_tokens(given)
    try:  # the client checks the types of all it is given
        return build_request(cast(Prompt | None, prompt), cast(Options, {**(defaults or {}), **options}))
    except InvalidRequest as error:
        raise openai_error(endpoint, body, error) from error


def openai_error(endpoint: Endpoint, body: Mapping[str, Json], error: InvalidRequest) -> InvalidRequest:
    """The error under the name that the body has for the wire's field."""
    chat, vllm = endpoint is Endpoint.CHAT, body.get("structured_outputs") is not None
    constraint = "structured_outputs" if vllm else "response_format"
    names = {
        "sampling.stop_strings": "stop",
        "sampling.include_stop": "include_stop_str_in_output",
        "sampling.logprob_count": "top_logprobs" if chat else "logprobs",
        "sampling.prompt_logprob_count": "prompt_logprobs",
        "sampling.structured_output.json_schema": f"{constraint}.json{'_schema' * (not vllm)}",
        "sampling.structured_output.choices": f"{constraint}.choice",
        "sampling.structured_output": constraint,
        "sampling.max_tokens": "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens",
        "sampling.": "",
        "sample_count": "n",
        "chat.": "",
        "chat": "messages",
        "text": "prompt",
        "token_ids.ids": "prompt",
        "token_ids": "prompt",
    }
    wire = next((name for name in names if error.field.startswith(name)), None)
    if wire is None:
        return error
    return type(error)(names[wire] + error.field.removeprefix(wire), error.problem)


def _check_names(endpoint: Endpoint, given: Mapping[str, Json]) -> None:
    neutral = {**NEUTRAL, **NEUTRAL_BY_ENDPOINT[endpoint]}
    for name, value in given.items():
        if name in SERVED or name in IGNORED or name in OWN[endpoint]:
            continue
        if name not in neutral:
            raise InvalidRequest(name[:64], f"is not a field of {endpoint}")
        if not any(value == same and type(value) is type(same) for same in neutral[name]):
            allowed = " or ".join(map(repr, neutral[name])) or "null"
            raise UnsupportedParameter(name, f"cannot be served exactly but as {allowed}, not {value!r:.80}")
    if not isinstance(given.get("return_token_ids", False), bool):
        raise InvalidRequest("return_token_ids", "must be true or false")


def plain_prompt(given: Mapping[str, Json]) -> Json:
    """Text or token ids; also as the one element of a list, which OpenAI allows."""
    prompt = given.get("prompt")
    if prompt is None:
        raise InvalidRequest("prompt", "is missing")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise UnsupportedParameter("prompt", f"has {len(prompt)} prompts; give each a line of its own")
        prompt = prompt[0]
    if not isinstance(prompt, str | list) or not prompt:
        raise InvalidRequest("prompt", "must be text or a list of token ids that is not empty")
    return prompt


def chat_messages(given: Mapping[str, Json]) -> Json:
    """Messages of role and content, where content may also be a list of one text part."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages", "must be a list of messages that is not empty")
    return [_message(f"messages[{at}]", message) for at, message in enumerate(messages)]


def _message(field: str, message: Json) -> Json:
    if not isinstance(message, dict):
        raise InvalidRequest(field, f"must be an object, not {message!r:.80}")
    row: dict[str, Json] = {key: value for key, value in message.items() if value is not None}
    for key in row.keys() - {"role", "content"}:
        raise UnsupportedParameter(f"{field}.{key[:64]}", "cannot be served; role and content can")
    if isinstance(parts := row.get("content"), list):
        part = parts[0] if len(parts) == 1 else None
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            raise UnsupportedParameter(f"{field}.content", "must be text, or a list of one text part")
        row["content"] = part["text"]
    return row


def _chat_logprobs(given: Mapping[str, Json]) -> Json:
    wanted, top = given.get("logprobs", False), given.get("top_logprobs")
    if not isinstance(wanted, bool):
        raise InvalidRequest("logprobs", f"must be true or false, not {wanted!r:.80}")
    if not wanted and top is not None:
        raise InvalidRequest("top_logprobs", "needs logprobs: true")
    return (0 if top is None else top) if wanted else None


def _echoed_logprobs(given: Mapping[str, Json]) -> Json:
    """As many for an echoed prompt as for the answer, or more where more are asked for."""
    counts = [given[name] for name in ("logprobs", "prompt_logprobs") if name in given]
    numbers = [count for count in counts if type(count) is int]
    return max(numbers) if len(numbers) == len(counts) else counts[0]


def _max_completion_tokens(given: Mapping[str, Json]) -> Json:
    limits = [given[name] for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(limits) == 2 and limits[0] != limits[1]:
        raise InvalidRequest("max_tokens", "differs from max_completion_tokens, its newer name")
    return limits[0] if limits else None


def _logit_bias(value: Json) -> Mapping[int, Json]:
    """JSON's keys are text; these are decimal token ids."""
    if not isinstance(value, dict):
        raise InvalidRequest("logit_bias", f"must map token ids to numbers, not {value!r:.80}")
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) < 11):
            raise InvalidRequest("logit_bias", f"{key[:64]!r} is no token id")
    if len({int(key) for key in value}) < len(value):
        raise InvalidRequest("logit_bias", "has a token id twice")
    return {int(key): bias for key, bias in value.items()}
