"""Errors to statuses and back: `google.rpc.Status` with one ErrorInfo, through one table.

    ErrorInfo    reason, domain "corun-pd", metadata: what a program reads
    BadRequest   the field, for InvalidRequest
    RetryInfo    when to come back, for Overloaded

A leg inside a shared call cannot have a status of its own, so it carries the same facts in a LegError.
"""

from collections.abc import Mapping
from typing import Final, NoReturn, TypeVar, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from corun_pd.errors import (
    Cancelled,
    ContractBroken,
    ContractMismatch,
    CorunError,
    DeadlineExceeded,
    EngineFailed,
    HandoffRejected,
    InvalidRequest,
    Overloaded,
    Unavailable,
    Unimplemented,
    UnsupportedParameter,
)
from corun_pd.v1 import legs_pb2

__all__ = ["DOMAIN", "abort", "error_from_rpc", "leg_error_from_pb", "leg_error_to_pb"]

Request = TypeVar("Request")
Response = TypeVar("Response")

#: The domain of every ErrorInfo.
DOMAIN: Final = "corun-pd"

CODES: Final[Mapping[type[CorunError], grpc.StatusCode]] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnsupportedParameter: grpc.StatusCode.INVALID_ARGUMENT,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    ContractMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    HandoffRejected: grpc.StatusCode.ABORTED,
    EngineFailed: grpc.StatusCode.INTERNAL,
    ContractBroken: grpc.StatusCode.DATA_LOSS,
}

#: Classes by reason: those whose one argument is the message.
_PLAIN: Final = {
    kind.reason: kind
    for kind in (
        Unavailable,
        Unimplemented,
        DeadlineExceeded,
        Cancelled,
        HandoffRejected,
        EngineFailed,
        ContractBroken,
    )
}

#: What a bare code means, when gRPC itself or a proxy made the status.
_BARE: Final[Mapping[grpc.StatusCode, type[CorunError]]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}

#: How long a client waits when a bare RESOURCE_EXHAUSTED does not say.
_BARE_RETRY_DELAY_S: Final = 1.0

_VALUES: Final = {code.value[0]: code for code in grpc.StatusCode}


def code_of(error: CorunError) -> grpc.StatusCode:
    """The status code; INTERNAL for an error that no client should ever see."""
    return CODES.get(type(error), grpc.StatusCode.INTERNAL)


def error_from(reason: str, message: str, metadata: Mapping[str, str]) -> CorunError | None:
    """The error that `reason` and `metadata` tell of; None for a reason that this version lacks."""
    error: CorunError
    if reason in (InvalidRequest.reason, UnsupportedParameter.reason) and "field" in metadata:
        kind = UnsupportedParameter if reason == UnsupportedParameter.reason else InvalidRequest
        return kind(metadata["field"], metadata.get("problem", message))
    if reason == Overloaded.reason:
        return Overloaded(message, float(metadata.get("retry_delay_s", _BARE_RETRY_DELAY_S)))
    if reason == ContractMismatch.reason:
        # Sorted, as `require_equal` has them: a map on the wire keeps no order.
        pairs = {name: metadata[name].partition(" != ") for name in sorted(metadata)}
        differences = {name: (expected, found) for name, (expected, _, found) in pairs.items()}
        return ContractMismatch(message.partition("\n")[0], differences)
    if reason in _PLAIN:
        error = _PLAIN[reason](message)
        error.metadata = dict(metadata)
        return error
    return None


def leg_error_to_pb(error: CorunError) -> legs_pb2.LegError:
    """Why a leg failed, for the answer that carries it."""
    return legs_pb2.LegError(
        code=code_of(error).value[0], reason=error.reason, message=error.message, metadata=error.metadata
    )


def leg_error_from_pb(message: legs_pb2.LegError) -> CorunError:
    """Why a leg failed, in the class that its sender raised."""
    known = error_from(message.reason, message.message, message.metadata)
    return known or _from_bare(_VALUES.get(message.code, grpc.StatusCode.UNKNOWN), message.message)


async def abort(context: "grpc.aio.ServicerContext[Request, Response]", error: CorunError) -> NoReturn:
    """Ends the call with the error's status and details."""
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    ]
    if isinstance(error, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.problem)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_delay_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_of(error).value[0], message=error.message)
    for detail in details:
        status.details.add().Pack(detail)
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError("abort returned")  # pragma: no cover - it raises


def error_from_rpc(error: grpc.aio.AioRpcError) -> CorunError:
    """The error that a failed call tells of, in the class that the server raised.

    A status that gRPC made itself maps by its code: a message over the limit to InvalidRequest, a lost
    connection to Unavailable.
    """
    info = _error_info(error)
    known = None if info is None else error_from(info.reason, error.details() or "", info.metadata)
    return known or _from_bare(error.code(), error.details() or "")


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    try:
        status = rpc_status.from_call(cast("grpc.Call", error))
    except ValueError:  # the details belong to another code: a proxy wrote the status
        return None
    details: list[AnyMessage] = [] if status is None else list(status.details)
    for detail in details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info
    return None


def _from_bare(code: grpc.StatusCode, message: str) -> CorunError:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own limit on the size of a message has this code too, and trying again will not help.
        if "larger than max" in message:
            return InvalidRequest("request", message)
        return Overloaded(message, _BARE_RETRY_DELAY_S)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest("request", message)
    return _BARE.get(code, EngineFailed)(f"{message} ({code.name})")
