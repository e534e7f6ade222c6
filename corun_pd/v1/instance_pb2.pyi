from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
    ROLE_COLOCATED: _ClassVar[Role]
    ROLE_STANDARD: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role
ROLE_COLOCATED: Role
ROLE_STANDARD: Role

class Contract(_message.Message):
    __slots__ = ("settings", "fingerprint")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    fingerprint: str
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Instance(_message.Message):
    __slots__ = ("instance_id", "role", "address", "contract", "model", "slot_count", "block_count", "block_token_count", "max_model_token_count", "prefill_token_count", "block_byte_count", "max_logprob_count", "vocabulary_token_count")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    role: Role
    address: str
    contract: Contract
    model: str
    slot_count: int
    block_count: int
    block_token_count: int
    max_model_token_count: int
    prefill_token_count: int
    block_byte_count: int
    max_logprob_count: int
    vocabulary_token_count: int
    def __init__(self, instance_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., address: _Optional[str] = ..., contract: _Optional[_Union[Contract, _Mapping]] = ..., model: _Optional[str] = ..., slot_count: _Optional[int] = ..., block_count: _Optional[int] = ..., block_token_count: _Optional[int] = ..., max_model_token_count: _Optional[int] = ..., prefill_token_count: _Optional[int] = ..., block_byte_count: _Optional[int] = ..., max_logprob_count: _Optional[int] = ..., vocabulary_token_count: _Optional[int] = ...) -> None: ...

class InstanceLoad(_message.Message):
    __slots__ = ("running_count", "waiting_count", "free_block_count", "open_handoff_count", "prefilled_token_count", "reused_token_count", "sampled_token_count", "kv_pulled_byte_count", "step_count", "padding_row_count", "row_count")
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_HANDOFF_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_PULLED_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    PADDING_ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    running_count: int
    waiting_count: int
    free_block_count: int
    open_handoff_count: int
    prefilled_token_count: int
    reused_token_count: int
    sampled_token_count: int
    kv_pulled_byte_count: int
    step_count: int
    padding_row_count: int
    row_count: int
    def __init__(self, running_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., free_block_count: _Optional[int] = ..., open_handoff_count: _Optional[int] = ..., prefilled_token_count: _Optional[int] = ..., reused_token_count: _Optional[int] = ..., sampled_token_count: _Optional[int] = ..., kv_pulled_byte_count: _Optional[int] = ..., step_count: _Optional[int] = ..., padding_row_count: _Optional[int] = ..., row_count: _Optional[int] = ...) -> None: ...

class DescribeInstanceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeInstanceResponse(_message.Message):
    __slots__ = ("instance", "load")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    load: InstanceLoad
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., load: _Optional[_Union[InstanceLoad, _Mapping]] = ...) -> None: ...
