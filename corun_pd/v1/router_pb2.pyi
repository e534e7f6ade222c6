from corun_pd.v1 import instance_pb2 as _instance_pb2
from corun_pd.v1 import legs_pb2 as _legs_pb2
from corun_pd.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Route(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTE_UNSPECIFIED: _ClassVar[Route]
    ROUTE_DISAGGREGATED: _ClassVar[Route]
    ROUTE_COLOCATED: _ClassVar[Route]
ROUTE_UNSPECIFIED: Route
ROUTE_DISAGGREGATED: Route
ROUTE_COLOCATED: Route

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("generation_id", "text", "token_ids", "chat", "sampling", "sample_count", "route", "tokens_only", "echo", "seeds")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_ONLY_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    text: str
    token_ids: _sampling_pb2.TokenIds
    chat: ChatPrompt
    sampling: _sampling_pb2.SamplingParams
    sample_count: int
    route: Route
    tokens_only: bool
    echo: bool
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[_sampling_pb2.TokenIds, _Mapping]] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., sample_count: _Optional[int] = ..., route: _Optional[_Union[Route, str]] = ..., tokens_only: bool = ..., echo: bool = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("prefill_instance_id", "decode_instance_id", "kv_moved_byte_count", "replay_count")
    PREFILL_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    KV_MOVED_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_COUNT_FIELD_NUMBER: _ClassVar[int]
    prefill_instance_id: str
    decode_instance_id: str
    kv_moved_byte_count: int
    replay_count: int
    def __init__(self, prefill_instance_id: _Optional[str] = ..., decode_instance_id: _Optional[str] = ..., kv_moved_byte_count: _Optional[int] = ..., replay_count: _Optional[int] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "finish_reason", "stop_string", "stop_token_id", "seed", "placement")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _sampling_pb2.Logprobs
    finish_reason: _sampling_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    seed: int
    placement: Placement
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., seed: _Optional[int] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ...) -> None: ...

class ScoredPrompt(_message.Message):
    __slots__ = ("token_ids", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _sampling_pb2.Logprobs
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_token_count", "completion_token_count")
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    prompt_token_count: int
    completion_token_count: int
    def __init__(self, prompt_token_count: _Optional[int] = ..., completion_token_count: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_duration", "first_token_duration", "total_duration")
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_DURATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DURATION_FIELD_NUMBER: _ClassVar[int]
    queue_duration: _duration_pb2.Duration
    first_token_duration: _duration_pb2.Duration
    total_duration: _duration_pb2.Duration
    def __init__(self, queue_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_token_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., total_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("generation_id", "choices", "usage", "system_fingerprint", "seed", "timings", "prompt")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    usage: Usage
    system_fingerprint: str
    seed: int
    timings: Timings
    prompt: ScoredPrompt
    def __init__(self, generation_id: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., system_fingerprint: _Optional[str] = ..., seed: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., prompt: _Optional[_Union[ScoredPrompt, _Mapping]] = ...) -> None: ...

class GenerateManyRequest(_message.Message):
    __slots__ = ("starts", "cancel_numbers")
    class Start(_message.Message):
        __slots__ = ("number", "generation", "timeout_duration", "siblings")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        GENERATION_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_DURATION_FIELD_NUMBER: _ClassVar[int]
        SIBLINGS_FIELD_NUMBER: _ClassVar[int]
        number: int
        generation: Generation
        timeout_duration: _duration_pb2.Duration
        siblings: _containers.RepeatedCompositeFieldContainer[GenerateManyRequest.Start]
        def __init__(self, number: _Optional[int] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., timeout_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., siblings: _Optional[_Iterable[_Union[GenerateManyRequest.Start, _Mapping]]] = ...) -> None: ...
    STARTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[GenerateManyRequest.Start]
    cancel_numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[_Union[GenerateManyRequest.Start, _Mapping]]] = ..., cancel_numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("finishes",)
    class Finish(_message.Message):
        __slots__ = ("number", "answer", "error")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        ANSWER_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        number: int
        answer: GenerateResponse
        error: _legs_pb2.LegError
        def __init__(self, number: _Optional[int] = ..., answer: _Optional[_Union[GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_legs_pb2.LegError, _Mapping]] = ...) -> None: ...
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    finishes: _containers.RepeatedCompositeFieldContainer[GenerateManyResponse.Finish]
    def __init__(self, finishes: _Optional[_Iterable[_Union[GenerateManyResponse.Finish, _Mapping]]] = ...) -> None: ...

class StreamGenerateRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ...) -> None: ...

class ChoiceDelta(_message.Message):
    __slots__ = ("index", "text", "token_ids", "logprobs", "finish_reason", "stop_string", "stop_token_id", "seed", "placement")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _sampling_pb2.Logprobs
    finish_reason: _sampling_pb2.FinishReason
    stop_string: str
    stop_token_id: int
    seed: int
    placement: Placement
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., seed: _Optional[int] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("generation_id", "system_fingerprint", "seed", "prompt_token_count")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    system_fingerprint: str
    seed: int
    prompt_token_count: int
    def __init__(self, generation_id: _Optional[str] = ..., system_fingerprint: _Optional[str] = ..., seed: _Optional[int] = ..., prompt_token_count: _Optional[int] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("usage", "timings", "prompt")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    timings: Timings
    prompt: ScoredPrompt
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., prompt: _Optional[_Union[ScoredPrompt, _Mapping]] = ...) -> None: ...

class StreamGenerateResponse(_message.Message):
    __slots__ = ("start", "deltas", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    deltas: _containers.RepeatedCompositeFieldContainer[ChoiceDelta]
    end: StreamEnd
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., deltas: _Optional[_Iterable[_Union[ChoiceDelta, _Mapping]]] = ..., end: _Optional[_Union[StreamEnd, _Mapping]] = ...) -> None: ...

class DescribeFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetMember(_message.Message):
    __slots__ = ("instance", "load", "leg_count", "reserved_block_count")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LEG_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    instance: _instance_pb2.Instance
    load: _instance_pb2.InstanceLoad
    leg_count: int
    reserved_block_count: int
    def __init__(self, instance: _Optional[_Union[_instance_pb2.Instance, _Mapping]] = ..., load: _Optional[_Union[_instance_pb2.InstanceLoad, _Mapping]] = ..., leg_count: _Optional[int] = ..., reserved_block_count: _Optional[int] = ...) -> None: ...

class DescribeFleetResponse(_message.Message):
    __slots__ = ("contract", "members", "running_count", "waiting_count", "max_message_byte_count")
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    contract: _instance_pb2.Contract
    members: _containers.RepeatedCompositeFieldContainer[FleetMember]
    running_count: int
    waiting_count: int
    max_message_byte_count: int
    def __init__(self, contract: _Optional[_Union[_instance_pb2.Contract, _Mapping]] = ..., members: _Optional[_Iterable[_Union[FleetMember, _Mapping]]] = ..., running_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., max_message_byte_count: _Optional[int] = ...) -> None: ...

class JoinFleetRequest(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: _instance_pb2.Instance
    def __init__(self, instance: _Optional[_Union[_instance_pb2.Instance, _Mapping]] = ...) -> None: ...

class JoinFleetResponse(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    def __init__(self, fingerprint: _Optional[str] = ...) -> None: ...
