"""Messages to vocabulary and back. What a message lacks and must have is an InvalidRequest."""

import json
from collections.abc import Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration

from corun_pd.contract import fingerprint_of
from corun_pd.core import (
    FinishReason,
    FirstToken,
    InstanceInfo,
    InstanceLoad,
    KvHandoff,
    RngState,
    Role,
    SamplingParams,
    StructuredOutput,
    Syntax,
    TokenLogprobs,
)
from corun_pd.errors import InvalidRequest
from corun_pd.v1 import instance_pb2, kv_handoff_pb2, sampling_pb2

__all__ = [
    "finish_from_pb",
    "finish_to_pb",
    "first_token_from_pb",
    "first_token_to_pb",
    "handoff_from_pb",
    "handoff_to_pb",
    "instance_from_pb",
    "instance_to_pb",
    "load_from_pb",
    "load_to_pb",
    "logprobs_from_pb",
    "logprobs_to_pb",
    "sampling_from_pb",
    "sampling_to_pb",
    "structured_output_from_pb",
    "structured_output_to_pb",
]

#: The scalars that every leg carries, so that zero never stands for "unset".
LEG_SCALARS: Final = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
)

_FINISH_TO_PB: Final = {
    None: sampling_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}
_FINISH_FROM_PB: Final = {value: key for key, value in _FINISH_TO_PB.items()}

_ROLE_TO_PB: Final = {
    Role.PREFILL: instance_pb2.ROLE_PREFILL,
    Role.DECODE: instance_pb2.ROLE_DECODE,
    Role.COLOCATED: instance_pb2.ROLE_COLOCATED,
    Role.STANDARD: instance_pb2.ROLE_STANDARD,
}
_ROLE_FROM_PB: Final = {value: key for key, value in _ROLE_TO_PB.items()}


def sampling_to_pb(sampling: SamplingParams) -> sampling_pb2.SamplingParams:
    """Resolved parameters, every scalar set. Stop strings stay at the router."""
    return sampling_pb2.SamplingParams(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logprob_count=sampling.logprobs,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_word_token_ids=[sampling_pb2.TokenIds(ids=word) for word in sampling.bad_words],
        prompt_logprob_count=sampling.prompt_logprobs,
        structured_output=structured_output_to_pb(sampling.structured_output),
    )


def sampling_from_pb(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """A leg's parameters. Raises InvalidRequest that names the scalar that is unset."""
    for name in LEG_SCALARS:
        if not message.HasField(name):
            raise InvalidRequest(f"sampling.{name}", "unset; a leg carries every scalar")
    if message.stop_strings:
        raise InvalidRequest("sampling.stop_strings", "set; legs carry none, the router watches for them")
    if message.bad_words:
        raise InvalidRequest("sampling.bad_words", "set; legs carry their token ids")
    return SamplingParams(
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=message.logprob_count if message.HasField("logprob_count") else None,
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(word.ids) for word in message.bad_word_token_ids),
        structured_output=structured_output_from_pb(message),
        prompt_logprobs=message.prompt_logprob_count if message.HasField("prompt_logprob_count") else None,
    )


def structured_output_to_pb(output: StructuredOutput | None) -> sampling_pb2.StructuredOutput | None:
    """What the text must look like; None stays None."""
    if output is None:
        return None
    message = sampling_pb2.StructuredOutput()
    if output.syntax is Syntax.CHOICES:
        message.choices.texts.extend(json.loads(output.spec))
    else:
        setattr(message, output.syntax, output.spec)
    return message


def structured_output_from_pb(message: sampling_pb2.SamplingParams) -> StructuredOutput | None:
    """What the text must look like. Raises InvalidRequest for a constraint without a syntax."""
    if not message.HasField("structured_output"):
        return None
    output = message.structured_output
    kind = output.WhichOneof("constraint")
    if kind is None:
        raise InvalidRequest("sampling.structured_output", "has no constraint")
    if kind == "choices":
        return StructuredOutput(Syntax.CHOICES, json.dumps(list(output.choices.texts)))
    return StructuredOutput(Syntax(kind), getattr(output, kind))


def logprobs_to_pb(logprobs: Sequence[TokenLogprobs]) -> sampling_pb2.Logprobs:
    """One entry per token, in columns."""
    return sampling_pb2.Logprobs(
        sampled=[entry.sampled for entry in logprobs],
        ranks=[entry.rank for entry in logprobs],
        top=[
            sampling_pb2.TopLogprobs(
                token_ids=[token_id for token_id, _ in entry.top],
                logprobs=[logprob for _, logprob in entry.top],
            )
            for entry in logprobs
        ],
    )


def logprobs_from_pb(message: sampling_pb2.Logprobs) -> list[TokenLogprobs]:
    """One entry per token. Raises InvalidRequest when the columns differ in length."""
    if not len(message.sampled) == len(message.ranks) == len(message.top):
        raise InvalidRequest("logprobs", "columns of different lengths")
    return [
        TokenLogprobs(sampled, rank, tuple(zip(top.token_ids, top.logprobs, strict=True)))
        for sampled, rank, top in zip(message.sampled, message.ranks, message.top, strict=True)
    ]


def handoff_to_pb(handoff: KvHandoff) -> kv_handoff_pb2.KvHandoff:
    """The ticket, with what is left of its lease."""
    lease = Duration()
    lease.FromNanoseconds(round(handoff.lease_s * 1e9))
    return kv_handoff_pb2.KvHandoff(
        handoff_id=handoff.handoff_id,
        engine_id=handoff.engine_id,
        side_channel_host=handoff.host,
        side_channel_port=handoff.port,
        block_groups=[kv_handoff_pb2.KvBlocks(ids=group) for group in handoff.block_groups],
        token_count=handoff.token_count,
        prompt_digest=handoff.prompt_digest,
        fingerprint=handoff.fingerprint,
        tensor_parallel_size=handoff.tensor_parallel_size,
        lease_duration=lease,
    )


def handoff_from_pb(message: kv_handoff_pb2.KvHandoff) -> KvHandoff:
    """The ticket."""
    return KvHandoff(
        handoff_id=message.handoff_id,
        engine_id=message.engine_id,
        host=message.side_channel_host,
        port=message.side_channel_port,
        block_groups=tuple(tuple(group.ids) for group in message.block_groups),
        token_count=message.token_count,
        prompt_digest=message.prompt_digest,
        fingerprint=message.fingerprint,
        lease_s=message.lease_duration.ToNanoseconds() / 1e9,
        tensor_parallel_size=message.tensor_parallel_size,
    )


def first_token_to_pb(first: FirstToken) -> kv_handoff_pb2.FirstToken:
    """What prefill sampled."""
    return kv_handoff_pb2.FirstToken(
        token_id=first.token_id,
        logprobs=None if first.logprobs is None else logprobs_to_pb([first.logprobs]),
        rng=kv_handoff_pb2.RngState(scheme=first.rng.scheme, seed=first.rng.seed, step=first.rng.step),
    )


def first_token_from_pb(message: kv_handoff_pb2.FirstToken) -> FirstToken:
    """What prefill sampled. Raises InvalidRequest when the random state is missing."""
    if not message.HasField("rng"):
        raise InvalidRequest("first_token.rng", "unset")
    logprobs = logprobs_from_pb(message.logprobs) if message.HasField("logprobs") else [None]
    if len(logprobs) != 1:
        raise InvalidRequest("first_token.logprobs", f"{len(logprobs)} entries for one token")
    return FirstToken(
        token_id=message.token_id,
        rng=RngState(message.rng.scheme, message.rng.seed, message.rng.step),
        logprobs=logprobs[0],
    )


def instance_to_pb(info: InstanceInfo) -> instance_pb2.Instance:
    """What an instance is."""
    return instance_pb2.Instance(
        instance_id=info.instance_id,
        role=_ROLE_TO_PB[info.role],
        address=info.address,
        contract=instance_pb2.Contract(settings=info.settings, fingerprint=info.fingerprint),
        model=info.model,
        slot_count=info.slots,
        block_count=info.blocks,
        block_token_count=info.block_tokens,
        max_model_token_count=info.max_model_tokens,
        prefill_token_count=info.prefill_tokens,
        block_byte_count=info.block_bytes,
        max_logprob_count=info.max_logprobs,
        vocabulary_token_count=info.vocabulary,
    )


def instance_from_pb(message: instance_pb2.Instance) -> InstanceInfo:
    """What an instance is. Raises InvalidRequest for an empty or inconsistent description."""
    role = _ROLE_FROM_PB.get(message.role)
    if role is None:
        raise InvalidRequest("instance.role", f"{message.role} is no role")
    for name in ("instance_id", "address"):
        if not getattr(message, name):
            raise InvalidRequest(f"instance.{name}", "empty")
    for name in ("slot_count", "block_count", "block_token_count", "max_model_token_count"):
        if getattr(message, name) < 1:
            raise InvalidRequest(f"instance.{name}", "must be at least 1, got 0")
    settings = dict(message.contract.settings)
    if message.contract.fingerprint != fingerprint_of(settings):
        raise InvalidRequest("instance.contract.fingerprint", "not that of the settings")
    return InstanceInfo(
        instance_id=message.instance_id,
        role=role,
        address=message.address,
        fingerprint=message.contract.fingerprint,
        settings=settings,
        model=message.model,
        slots=message.slot_count,
        blocks=message.block_count,
        block_tokens=message.block_token_count,
        max_model_tokens=message.max_model_token_count,
        prefill_tokens=message.prefill_token_count,
        block_bytes=message.block_byte_count,
        max_logprobs=message.max_logprob_count,
        vocabulary=message.vocabulary_token_count,
    )


def load_to_pb(load: InstanceLoad) -> instance_pb2.InstanceLoad:
    """What an instance is doing."""
    return instance_pb2.InstanceLoad(
        running_count=load.running,
        waiting_count=load.waiting,
        free_block_count=load.free_blocks,
        open_handoff_count=load.open_handoffs,
        prefilled_token_count=load.prefilled_tokens,
        sampled_token_count=load.sampled_tokens,
        kv_pulled_byte_count=load.kv_pulled_bytes,
        step_count=load.steps,
        padding_row_count=load.padding_rows,
        row_count=load.rows,
        reused_token_count=load.reused_tokens,
    )


def load_from_pb(message: instance_pb2.InstanceLoad) -> InstanceLoad:
    """What an instance is doing."""
    return InstanceLoad(
        running=message.running_count,
        waiting=message.waiting_count,
        free_blocks=message.free_block_count,
        open_handoffs=message.open_handoff_count,
        prefilled_tokens=message.prefilled_token_count,
        sampled_tokens=message.sampled_token_count,
        kv_pulled_bytes=message.kv_pulled_byte_count,
        steps=message.step_count,
        padding_rows=message.padding_row_count,
        rows=message.row_count,
        reused_tokens=message.reused_token_count,
    )


def finish_to_pb(reason: FinishReason | None) -> sampling_pb2.FinishReason:
    """Why it ended; None is unspecified."""
    return _FINISH_TO_PB[reason]


def finish_from_pb(value: sampling_pb2.FinishReason) -> FinishReason | None:
    """Why it ended; None when it has not. Raises InvalidRequest for a value that is no reason."""
    if value not in _FINISH_FROM_PB:
        raise InvalidRequest("finish_reason", f"{value} is no reason")
    return _FINISH_FROM_PB[value]
