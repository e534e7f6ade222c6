"""DecodeService: pulls KV caches and decodes at the fixed shape."""

from collections.abc import AsyncIterator, Sequence
from functools import cached_property

import grpc

from corun_pd.core import FirstToken, KvHandoff
from corun_pd.decode.columns import to_columns
from corun_pd.decode.tickets import LEASE_MARGIN_S, Tickets
from corun_pd.engine.calls import serve_legs
from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import CorunError, HandoffRejected, InvalidRequest
from corun_pd.v1 import legs_pb2, legs_pb2_grpc
from corun_pd.wire.convert import first_token_from_pb, handoff_from_pb, sampling_from_pb
from corun_pd.wire.status import abort

__all__ = ["DecodeService"]

Context = grpc.aio.ServicerContext[legs_pb2.RunDecodesRequest, legs_pb2.RunDecodesResponse]


class DecodeService(legs_pb2_grpc.DecodeServiceServicer):
    """The servicer. One engine, and one memory of used tickets, serve all calls."""

    def __init__(self, host: LegHost, lease_margin_s: float = LEASE_MARGIN_S) -> None:
        self._host = host
        self._lease_margin_s = lease_margin_s

    @cached_property
    def _tickets(self) -> Tickets:
        """Made at the first leg, when the engine runs."""
        return Tickets(self._host.info, self._lease_margin_s)

    async def RunDecodes(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[legs_pb2.RunDecodesRequest], context: Context
    ) -> None:
        """Runs the legs of one router; see the proto."""
        streaming: set[int] = set()

        def accept(session: LegSession, request: legs_pb2.RunDecodesRequest) -> None:
            for start in request.starts:
                self._start(session, start, streaming)
            for leg_id in request.cancel_leg_ids:
                if session.cancel(leg_id):
                    streaming.discard(leg_id)

        def render(_: LegSession, outputs: Sequence[SessionOutput]) -> legs_pb2.RunDecodesResponse:
            tokens, finishes, pulled = to_columns(outputs, streaming)
            return legs_pb2.RunDecodesResponse(tokens=tokens, finishes=finishes, pulled_leg_ids=pulled)

        try:
            await serve_legs(self._host, request_iterator, accept, render, context.write)
        except CorunError as error:
            await abort(context, error)

    def _start(
        self, session: LegSession, start: legs_pb2.RunDecodesRequest.Start, streaming: set[int]
    ) -> None:
        leg = start.leg
        prompt = tuple(leg.prompt.ids)
        try:
            sampling = sampling_from_pb(leg.sampling)
            if sampling.prompt_logprobs is not None:
                raise InvalidRequest("sampling.prompt_logprob_count", "set; prefill gives prompt logprobs")
            first, handoff = _resumption(start)
            self._tickets.punch(handoff, first, prompt, sampling)
        except CorunError as error:
            session.fail(leg.leg_id, error)
            return
        if leg.stream:
            streaming.add(leg.leg_id)
        session.start(leg.leg_id, prompt, sampling, stream=leg.stream, resume=(first, handoff))


def _resumption(start: legs_pb2.RunDecodesRequest.Start) -> tuple[FirstToken, KvHandoff]:
    """A decode engine computes no prompts, so it has nothing to do without these."""
    if not start.HasField("handoff"):
        raise HandoffRejected("the leg has no handoff")
    if not start.HasField("first_token"):
        raise HandoffRejected("the leg has no first token", handoff_id=start.handoff.handoff_id)
    return first_token_from_pb(start.first_token), handoff_from_pb(start.handoff)
