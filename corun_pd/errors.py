"""What can go wrong, one class for each outcome that a caller treats differently.

    CorunError
    ├── InvalidRequest            the request is wrong; names the field            INVALID_ARGUMENT
    │   └── UnsupportedParameter  a parameter that cannot be served exactly        INVALID_ARGUMENT
    ├── Overloaded                come back later; says when                       RESOURCE_EXHAUSTED
    ├── Unavailable               no instance can serve it now                     UNAVAILABLE
    ├── Unimplemented             the server is another program or version         UNIMPLEMENTED
    ├── DeadlineExceeded          the caller's time is up                          DEADLINE_EXCEEDED
    ├── Cancelled                 the caller went away                             CANCELLED
    ├── ContractMismatch          two contracts differ; names the fields           FAILED_PRECONDITION
    ├── HandoffRejected           a KV ticket is missing, stale, used or foreign   ABORTED
    ├── EngineFailed              the engine failed or died                        INTERNAL
    ├── ContractBroken            equal requests gave different tokens             DATA_LOSS
    └── SetupError                configuration or start-up; one line, exit code 2
        └── ConfigError           a configuration value is wrong; names the place

Every error has a machine-readable `reason` and `metadata` of strings; both cross the wire
(`corun_pd.wire`). `SetupError` never does.
"""

from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "Cancelled",
    "ConfigError",
    "ContractBroken",
    "ContractMismatch",
    "CorunError",
    "DeadlineExceeded",
    "EngineFailed",
    "HandoffRejected",
    "InvalidRequest",
    "Overloaded",
    "SetupError",
    "Unavailable",
    "Unimplemented",
    "UnsupportedParameter",
]


class CorunError(Exception):
    """The base of every error that this package raises on purpose."""

    reason: ClassVar[str] = "CORUN_ERROR"

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: Mapping[str, str] = metadata


class InvalidRequest(CorunError):
    """The request is wrong. `field` is the wire name of what is wrong, as `sampling.top_p`."""

    reason = "INVALID_REQUEST"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", field=field, problem=problem)
        self.field = field
        self.problem = problem


class UnsupportedParameter(InvalidRequest):
    """A parameter that the engine knows and this system cannot serve exactly yet."""

    reason = "UNSUPPORTED_PARAMETER"


class Overloaded(CorunError):
    """The router's queue is full. `retry_delay_s` is when to come back, in seconds."""

    reason = "OVERLOADED"

    def __init__(self, message: str, retry_delay_s: float) -> None:
        super().__init__(message, retry_delay_s=f"{retry_delay_s:.3f}")
        self.retry_delay_s = retry_delay_s


class Unavailable(CorunError):
    """No instance can serve the request now: none has joined, or the one that had it went away."""

    reason = "UNAVAILABLE"


class Unimplemented(CorunError):
    """The server lacks the call: it is another program, or another version. It will lack it next time too."""

    reason = "UNIMPLEMENTED"


class DeadlineExceeded(CorunError):
    """The caller's deadline passed."""

    reason = "DEADLINE_EXCEEDED"


class Cancelled(CorunError):
    """The caller cancelled or went away."""

    reason = "CANCELLED"


class ContractMismatch(CorunError):
    """Two contracts differ. `differences` maps each field to its (expected, found) values as JSON."""

    reason = "CONTRACT_MISMATCH"

    def __init__(self, message: str, differences: Mapping[str, tuple[str, str]]) -> None:
        rows = {field: f"{expected} != {found}" for field, (expected, found) in differences.items()}
        super().__init__(message + "".join(f"\n  {k}: {v}" for k, v in rows.items()), **rows)
        self.differences = dict(differences)


class HandoffRejected(CorunError):
    """A KV handoff cannot be used: missing, expired, used before, or made for another prompt."""

    reason = "HANDOFF_REJECTED"


class EngineFailed(CorunError):
    """The engine failed on the request, or died."""

    reason = "ENGINE_FAILED"


class ContractBroken(CorunError):
    """Two runs of one request gave different tokens under one fingerprint."""

    reason = "CONTRACT_BROKEN"


class SetupError(CorunError):
    """Something outside the code keeps the program from starting. Shown as one line."""

    reason = "SETUP_ERROR"


class ConfigError(SetupError):
    """A configuration value is wrong. The message names the place and the value."""

    reason = "CONFIG_ERROR"
