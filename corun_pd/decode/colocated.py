"""ColocatedService: whole generations on one engine. The reference, and the standard engine's service."""

from collections.abc import AsyncIterator, Sequence

import grpc

from corun_pd.decode.columns import to_columns
from corun_pd.engine.calls import serve_legs
from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import CorunError
from corun_pd.v1 import legs_pb2, legs_pb2_grpc
from corun_pd.wire.convert import sampling_from_pb
from corun_pd.wire.status import abort

__all__ = ["ColocatedService"]

Context = grpc.aio.ServicerContext[legs_pb2.RunGenerationsRequest, legs_pb2.RunGenerationsResponse]


class ColocatedService(legs_pb2_grpc.ColocatedServiceServicer):
    """The servicer. One engine serves all calls."""

    def __init__(self, host: LegHost) -> None:
        self._host = host

    async def RunGenerations(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[legs_pb2.RunGenerationsRequest], context: Context
    ) -> None:
        """Runs the generations of one router; see the proto."""
        streaming: set[int] = set()

        def accept(session: LegSession, request: legs_pb2.RunGenerationsRequest) -> None:
            for leg in request.starts:
                _start(session, leg, streaming)
            for leg_id in request.cancel_leg_ids:
                if session.cancel(leg_id):
                    streaming.discard(leg_id)

        def render(_: LegSession, outputs: Sequence[SessionOutput]) -> legs_pb2.RunGenerationsResponse:
            tokens, finishes, _pulled = to_columns(outputs, streaming)
            return legs_pb2.RunGenerationsResponse(tokens=tokens, finishes=finishes)

        try:
            await serve_legs(self._host, request_iterator, accept, render, context.write)
        except CorunError as error:
            await abort(context, error)


def _start(session: LegSession, leg: legs_pb2.Leg, streaming: set[int]) -> None:
    try:
        sampling = sampling_from_pb(leg.sampling)
    except CorunError as error:
        session.fail(leg.leg_id, error)
        return
    if leg.stream:
        streaming.add(leg.leg_id)
    session.start(leg.leg_id, tuple(leg.prompt.ids), sampling, stream=leg.stream)
