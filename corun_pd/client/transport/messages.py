"""The client's values to messages and back. None is left unset on the wire; zero is sent."""

from collections.abc import Iterator
from typing import Final

from corun_pd.client.request import GenerationRequest, Route
from corun_pd.client.results import (
    Choice,
    Delta,
    Fleet,
    FleetMember,
    GenerationResult,
    Placement,
    ScoredPrompt,
    StreamEnd,
    StreamEvent,
    StreamStart,
    Timings,
    Usage,
)
from corun_pd.core import TokenLogprobs
from corun_pd.errors import EngineFailed
from corun_pd.v1 import router_pb2, sampling_pb2
from corun_pd.wire import convert

__all__ = ["events_from_pb", "fill", "fleet_from_pb", "request_to_pb", "result_from_pb"]

_ROUTES: Final = {
    None: router_pb2.ROUTE_UNSPECIFIED,
    Route.DISAGGREGATED: router_pb2.ROUTE_DISAGGREGATED,
    Route.COLOCATED: router_pb2.ROUTE_COLOCATED,
}


def request_to_pb(request: GenerationRequest) -> router_pb2.Generation:
    """The generation."""
    message = router_pb2.Generation()
    fill(message, request)
    return message


def fill(message: router_pb2.Generation, request: GenerationRequest, *, prompt: bool = True) -> None:
    """Puts a request into an empty message, without its prompt when another one has it."""
    message.generation_id = request.generation_id
    _fill_sampling(message.sampling, request)
    if request.n is not None:
        message.sample_count = request.n
    message.route = _ROUTES[request.route]
    message.tokens_only = request.tokens_only
    message.echo = request.echo
    if not prompt:
        return
    if isinstance(request.prompt, str):
        message.text = request.prompt
    elif request.prompt is not None:
        message.token_ids.SetInParent()
        message.token_ids.ids.extend(request.prompt)
    else:
        message.chat.SetInParent()
        for chat in request.messages or ():
            message.chat.messages.add(role=chat.role, content=chat.content)


#: The optional scalars by the wire's name.
_SCALARS: Final = {
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "logprobs": "logprob_count",
    "prompt_logprobs": "prompt_logprob_count",
    "ignore_eos": "ignore_eos",
    "include_stop": "include_stop",
}

_REPEATED: Final = {
    "stop_token_ids": "stop_token_ids",
    "stop": "stop_strings",
    "allowed_token_ids": "allowed_token_ids",
    "bad_words": "bad_words",
}


def _fill_sampling(message: sampling_pb2.SamplingParams, request: GenerationRequest) -> None:
    message.SetInParent()
    for ours, name in _SCALARS.items():
        value = getattr(request, ours)
        if value is not None:
            setattr(message, name, value)
    for ours, name in _REPEATED.items():
        values = getattr(request, ours)
        if values:
            getattr(message, name).extend(values)
    if request.logit_bias:
        message.logit_bias.update(request.logit_bias)
    if (constraint := convert.structured_output_to_pb(request.structured_output)) is not None:
        message.structured_output.CopyFrom(constraint)


def result_from_pb(message: router_pb2.GenerateResponse) -> GenerationResult:
    """The whole answer. Raises EngineFailed for one that has no samples or an unfinished one."""
    if not message.choices:
        raise EngineFailed("the router's answer has no samples")
    return GenerationResult(
        generation_id=message.generation_id,
        choices=tuple(_choice(choice) for choice in message.choices),
        usage=_usage(message.usage),
        system_fingerprint=message.system_fingerprint,
        seed=message.seed,
        timings=_timings(message.timings),
        prompt=_prompt(message),
    )


def events_from_pb(message: router_pb2.StreamGenerateResponse) -> Iterator[StreamEvent]:
    """What one message of a stream tells, in order."""
    if message.HasField("start"):
        start = message.start
        yield StreamStart(start.generation_id, start.system_fingerprint, start.seed, start.prompt_token_count)
    for delta in message.deltas:
        yield _delta(delta)
    if message.HasField("end"):
        yield StreamEnd(_usage(message.end.usage), _timings(message.end.timings), _prompt(message.end))


def fleet_from_pb(message: router_pb2.DescribeFleetResponse) -> Fleet:
    """The fleet."""
    return Fleet(
        fingerprint=message.contract.fingerprint or None,
        settings=dict(message.contract.settings),
        members=tuple(
            FleetMember(
                instance=convert.instance_from_pb(member.instance),
                load=convert.load_from_pb(member.load) if member.HasField("load") else None,
                legs=member.leg_count,
                reserved_blocks=member.reserved_block_count,
            )
            for member in message.members
        ),
        running=message.running_count,
        waiting=message.waiting_count,
        max_message_bytes=message.max_message_byte_count,
    )


def _choice(message: router_pb2.Choice) -> Choice:
    finish = convert.finish_from_pb(message.finish_reason)
    if finish is None:
        raise EngineFailed(f"sample {message.index} of the router's answer is not finished")
    return Choice(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=finish,
        seed=message.seed,
        logprobs=_logprobs(message),
        stop_reason=_stop_reason(message),
        placement=_placement(message.placement),
    )


def _delta(message: router_pb2.ChoiceDelta) -> Delta:
    return Delta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=_logprobs(message),
        finish_reason=convert.finish_from_pb(message.finish_reason),
        stop_reason=_stop_reason(message),
        seed=message.seed if message.HasField("seed") else None,
        placement=_placement(message.placement) if message.HasField("placement") else None,
    )


def _logprobs(message: router_pb2.Choice | router_pb2.ChoiceDelta) -> tuple[TokenLogprobs, ...] | None:
    return tuple(convert.logprobs_from_pb(message.logprobs)) if message.HasField("logprobs") else None


def _stop_reason(message: router_pb2.Choice | router_pb2.ChoiceDelta) -> str | int | None:
    if message.HasField("stop_string"):
        return message.stop_string
    return message.stop_token_id if message.HasField("stop_token_id") else None


def _prompt(message: router_pb2.GenerateResponse | router_pb2.StreamEnd) -> ScoredPrompt | None:
    if not message.HasField("prompt"):
        return None
    logprobs = convert.logprobs_from_pb(message.prompt.logprobs)
    return ScoredPrompt(tuple(message.prompt.token_ids), tuple(logprobs))


def _placement(message: router_pb2.Placement) -> Placement:
    return Placement(
        message.prefill_instance_id,
        message.decode_instance_id,
        message.kv_moved_byte_count,
        message.replay_count,
    )


def _usage(message: router_pb2.Usage) -> Usage:
    return Usage(message.prompt_token_count, message.completion_token_count)


def _timings(message: router_pb2.Timings) -> Timings:
    durations = (message.queue_duration, message.first_token_duration, message.total_duration)
    return Timings(*(duration.ToNanoseconds() / 1e9 for duration in durations))
