"""An error is the same error at the other end: class, message and facts."""

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

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
from corun_pd.wire.status import abort, error_from_rpc, leg_error_from_pb, leg_error_to_pb

ERRORS = [
    (InvalidRequest("sampling.top_p", "must be at most 1, got 2"), grpc.StatusCode.INVALID_ARGUMENT),
    (UnsupportedParameter("sampling.min_p", "not exact yet"), grpc.StatusCode.INVALID_ARGUMENT),
    (Overloaded("full", 2.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable("no decode instance", role="decode"), grpc.StatusCode.UNAVAILABLE),
    (Unimplemented("Method not found!"), grpc.StatusCode.UNIMPLEMENTED),
    (DeadlineExceeded("too late"), grpc.StatusCode.DEADLINE_EXCEEDED),
    (Cancelled("gone"), grpc.StatusCode.CANCELLED),
    (
        ContractMismatch("i-1 differs", {"m": ('"a != b"', "absent"), "slots": ("8", "16")}),
        grpc.StatusCode.FAILED_PRECONDITION,
    ),
    (HandoffRejected("expired", handoff_id="h"), grpc.StatusCode.ABORTED),
    (EngineFailed("died"), grpc.StatusCode.INTERNAL),
    (ContractBroken("token 3 differs"), grpc.StatusCode.DATA_LOSS),
]
IDS = [type(error).__name__ for error, _ in ERRORS]


class Context:
    """Keeps what a call is aborted with."""

    async def abort(
        self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, bytes], ...]
    ) -> None:
        raise rpc_error(code, details, trailers)


def rpc_error(
    code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


async def aborted(error: CorunError) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await abort(Context(), error)  # type: ignore[arg-type]
    return raised.value


def details_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=IDS)
async def test_error_comes_back_as_itself(error: CorunError, code: grpc.StatusCode) -> None:
    """Through a status and through a leg."""
    raised = await aborted(error)
    assert raised.code() is code
    for found in (error_from_rpc(raised), leg_error_from_pb(leg_error_to_pb(error))):
        assert type(found) is type(error)
        assert (found.message, dict(found.metadata)) == (error.message, dict(error.metadata))


async def test_details_are_the_standard_ones() -> None:
    """ErrorInfo with domain, BadRequest with the field, RetryInfo with the delay: for any client."""
    status = details_of(await aborted(ERRORS[0][0]))
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.domain) == ("INVALID_REQUEST", "corun-pd")
    assert bad.field_violations[0].field == "sampling.top_p"
    retry = error_details_pb2.RetryInfo()
    assert details_of(await aborted(Overloaded("full", 2.5))).details[1].Unpack(retry)
    assert retry.retry_delay == Duration(seconds=2, nanos=500_000_000)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, "", Cancelled),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", Overloaded),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Sent message larger than max (9 vs. 8)",
            InvalidRequest,
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", Unimplemented),
        (grpc.StatusCode.UNKNOWN, "bug", EngineFailed),
    ],
)
def test_bare_status_maps_by_its_code(code: grpc.StatusCode, details: str, kind: type[CorunError]) -> None:
    """What gRPC or a proxy says itself; a message over the limit is not worth another try."""
    assert type(error_from_rpc(rpc_error(code, details))) is kind


def test_foreign_details_are_not_believed() -> None:
    """Another domain's reason maps by the code alone, and broken details do no harm."""
    status = status_pb2.Status(code=14, message="busy")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="ENGINE_FAILED", domain="elsewhere"))
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    assert type(error_from_rpc(rpc_error(grpc.StatusCode.UNAVAILABLE, "busy", trailers))) is Unavailable
    assert type(error_from_rpc(rpc_error(grpc.StatusCode.CANCELLED, "busy", trailers))) is Cancelled


def test_leg_error_of_a_newer_peer_maps_by_its_code() -> None:
    """A reason that this version does not know is still an error of the right kind."""
    newer = legs_pb2.LegError(code=14, reason="BRAND_NEW", message="later")
    assert type(leg_error_from_pb(newer)) is Unavailable
