from corun_pd.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RngState(_message.Message):
    __slots__ = ("scheme", "seed", "step")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    seed: int
    step: int
    def __init__(self, scheme: _Optional[str] = ..., seed: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class KvBlocks(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class KvHandoff(_message.Message):
    __slots__ = ("handoff_id", "engine_id", "side_channel_host", "side_channel_port", "block_groups", "token_count", "prompt_digest", "fingerprint", "tensor_parallel_size", "lease_duration")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_HOST_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_PORT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    engine_id: str
    side_channel_host: str
    side_channel_port: int
    block_groups: _containers.RepeatedCompositeFieldContainer[KvBlocks]
    token_count: int
    prompt_digest: bytes
    fingerprint: str
    tensor_parallel_size: int
    lease_duration: _duration_pb2.Duration
    def __init__(self, handoff_id: _Optional[str] = ..., engine_id: _Optional[str] = ..., side_channel_host: _Optional[str] = ..., side_channel_port: _Optional[int] = ..., block_groups: _Optional[_Iterable[_Union[KvBlocks, _Mapping]]] = ..., token_count: _Optional[int] = ..., prompt_digest: _Optional[bytes] = ..., fingerprint: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("token_id", "logprobs", "rng")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprobs: _sampling_pb2.Logprobs
    rng: RngState
    def __init__(self, token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_sampling_pb2.Logprobs, _Mapping]] = ..., rng: _Optional[_Union[RngState, _Mapping]] = ...) -> None: ...
