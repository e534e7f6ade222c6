from corun_pd.v1 import kv_handoff_pb2 as _kv_handoff_pb2
from corun_pd.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LegError(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Leg(_message.Message):
    __slots__ = ("leg_id", "generation_id", "prompt", "sampling", "stream")
    LEG_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    leg_id: int
    generation_id: str
    prompt: _sampling_pb2.TokenIds
    sampling: _sampling_pb2.SamplingParams
    stream: bool
    def __init__(self, leg_id: _Optional[int] = ..., generation_id: _Optional[str] = ..., prompt: _Optional[_Union[_sampling_pb2.TokenIds, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., stream: bool = ...) -> None: ...

class RunPrefillsRequest(_message.Message):
    __slots__ = ("starts", "cancel_leg_ids", "release_handoff_ids")
    class Start(_message.Message):
        __slots__ = ("leg", "hand_off", "sibling_seeds")
        LEG_FIELD_NUMBER: _ClassVar[int]
        HAND_OFF_FIELD_NUMBER: _ClassVar[int]
        SIBLING_SEEDS_FIELD_NUMBER: _ClassVar[int]
        leg: Leg
        hand_off: bool
        sibling_seeds: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, leg: _Optional[_Union[Leg, _Mapping]] = ..., hand_off: bool = ..., sibling_seeds: _Optional[_Iterable[int]] = ...) -> None: ...
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_LEG_IDS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_HANDOFF_IDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[RunPrefillsRequest.Start]
    cancel_leg_ids: _containers.RepeatedScalarFieldContainer[int]
    release_handoff_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, starts: _Optional[_Iterable[_Union[RunPrefillsRequest.Start, _Mapping]]] = ..., cancel_leg_ids: _Optional[_Iterable[int]] = ..., release_handoff_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RunPrefillsResponse(_message.Message):
    __slots__ = ("finishes",)
    class Sibling(_message.Message):
        __slots__ = ("first_token", "finish_reason", "stop_token_id", "handoff", "error")
        FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
        FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
        STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        HANDOFF_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        first_token: _kv_handoff_pb2.FirstToken
        finish_reason: _sampling_pb2.FinishReason
        stop_token_id: int
        handoff: _kv_handoff_pb2.KvHandoff
        error: LegError
        def __init__(self, first_token: _Optional[_Union[_kv_handoff_pb2.FirstToken, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., handoff: _Optional[_Union[_kv_handoff_pb2.KvHandoff, _Mapping]] = ..., error: _Optional[_Union[LegError, _Mapping]] = ...) -> None: ...
    class Finish(_message.Message):
        __slots__ = ("leg_id", "first_token", "finish_reason", "stop_token_id", "handoff", "error", "prompt_logprobs", "siblings")
        LEG_ID_FIELD_NUMBER: _ClassVar[int]
        FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
        FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
        STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        HANDOFF_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
        SIBLINGS_FIELD_NUMBER: _ClassVar[int]
        leg_id: int
        first_token: _kv_handoff_pb2.FirstToken
        finish_reason: _sampling_pb2.FinishReason
        stop_token_id: int
        handoff: _kv_handoff_pb2.KvHandoff
        error: LegError
        prompt_logprobs: _sampling_pb2.Logprobs
        siblings: _containers.RepeatedCompositeFieldContainer[RunPrefillsResponse.Sibling]
        def __init__(self, leg_id: _Optional[int] = ..., first_token: _Optional[_Union[_kv_handoff_pb2.FirstToken, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., handoff: _Optional[_Union[_kv_handoff_pb2.KvHandoff, _Mapping]] = ..., error: _Optional[_Union[LegError, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ..., siblings: _Optional[_Iterable[_Union[RunPrefillsResponse.Sibling, _Mapping]]] = ...) -> None: ...
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    finishes: _containers.RepeatedCompositeFieldContainer[RunPrefillsResponse.Finish]
    def __init__(self, finishes: _Optional[_Iterable[_Union[RunPrefillsResponse.Finish, _Mapping]]] = ...) -> None: ...

class RunDecodesRequest(_message.Message):
    __slots__ = ("starts", "cancel_leg_ids")
    class Start(_message.Message):
        __slots__ = ("leg", "first_token", "handoff")
        LEG_FIELD_NUMBER: _ClassVar[int]
        FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
        HANDOFF_FIELD_NUMBER: _ClassVar[int]
        leg: Leg
        first_token: _kv_handoff_pb2.FirstToken
        handoff: _kv_handoff_pb2.KvHandoff
        def __init__(self, leg: _Optional[_Union[Leg, _Mapping]] = ..., first_token: _Optional[_Union[_kv_handoff_pb2.FirstToken, _Mapping]] = ..., handoff: _Optional[_Union[_kv_handoff_pb2.KvHandoff, _Mapping]] = ...) -> None: ...
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_LEG_IDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[RunDecodesRequest.Start]
    cancel_leg_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[_Union[RunDecodesRequest.Start, _Mapping]]] = ..., cancel_leg_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StepTokens(_message.Message):
    __slots__ = ("leg_ids", "token_ids", "logprobs", "logprob_rows", "prompt_logprobs", "prompt_logprob_rows")
    LEG_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_ROWS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROB_ROWS_FIELD_NUMBER: _ClassVar[int]
    leg_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.Logprobs]
    logprob_rows: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.Logprobs]
    prompt_logprob_rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, leg_ids: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.Logprobs, _Mapping]]] = ..., logprob_rows: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_sampling_pb2.Logprobs, _Mapping]]] = ..., prompt_logprob_rows: _Optional[_Iterable[int]] = ...) -> None: ...

class LegFinish(_message.Message):
    __slots__ = ("leg_id", "token_ids", "logprobs", "finish_reason", "stop_token_id", "kv_pulled_byte_count", "error", "prompt_logprobs")
    LEG_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    KV_PULLED_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    leg_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _sampling_pb2.Logprobs
    finish_reason: _sampling_pb2.FinishReason
    stop_token_id: int
    kv_pulled_byte_count: int
    error: LegError
    prompt_logprobs: _sampling_pb2.Logprobs
    def __init__(self, leg_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., kv_pulled_byte_count: _Optional[int] = ..., error: _Optional[_Union[LegError, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ...) -> None: ...

class RunDecodesResponse(_message.Message):
    __slots__ = ("tokens", "finishes", "pulled_leg_ids")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    PULLED_LEG_IDS_FIELD_NUMBER: _ClassVar[int]
    tokens: StepTokens
    finishes: _containers.RepeatedCompositeFieldContainer[LegFinish]
    pulled_leg_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Union[StepTokens, _Mapping]] = ..., finishes: _Optional[_Iterable[_Union[LegFinish, _Mapping]]] = ..., pulled_leg_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RunGenerationsRequest(_message.Message):
    __slots__ = ("starts", "cancel_leg_ids")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_LEG_IDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[Leg]
    cancel_leg_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[_Union[Leg, _Mapping]]] = ..., cancel_leg_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RunGenerationsResponse(_message.Message):
    __slots__ = ("tokens", "finishes")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    tokens: StepTokens
    finishes: _containers.RepeatedCompositeFieldContainer[LegFinish]
    def __init__(self, tokens: _Optional[_Union[StepTokens, _Mapping]] = ..., finishes: _Optional[_Iterable[_Union[LegFinish, _Mapping]]] = ...) -> None: ...
