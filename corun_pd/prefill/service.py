"""PrefillService: computes prompts and hands their KV caches over."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import grpc

from corun_pd.core import FinishReason, FirstToken, RngState, SamplingParams
from corun_pd.engine.base import LegOutput
from corun_pd.engine.calls import serve_legs
from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import CorunError
from corun_pd.v1 import legs_pb2, legs_pb2_grpc
from corun_pd.wire.convert import (
    finish_to_pb,
    first_token_to_pb,
    handoff_to_pb,
    logprobs_to_pb,
    sampling_from_pb,
)
from corun_pd.wire.status import abort, leg_error_to_pb

__all__ = ["PrefillService"]

Context = grpc.aio.ServicerContext[legs_pb2.RunPrefillsRequest, legs_pb2.RunPrefillsResponse]


class PrefillService(legs_pb2_grpc.PrefillServiceServicer):
    """The servicer. One engine serves all calls."""

    def __init__(self, host: LegHost) -> None:
        self._host = host

    async def RunPrefills(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[legs_pb2.RunPrefillsRequest], context: Context
    ) -> None:
        """Runs the legs of one router; see the proto."""
        call = _Call(self._host)
        try:
            await serve_legs(self._host, request_iterator, call.accept, call.render, context.write)
        except CorunError as error:
            await abort(context, error)


class _Call:
    """What a call remembers of its legs between start and finish: their sampling."""

    def __init__(self, host: LegHost) -> None:
        self._host = host
        self._sampling: dict[int, SamplingParams] = {}

    def accept(self, session: LegSession, request: legs_pb2.RunPrefillsRequest) -> None:
        for start in request.starts:
            leg = start.leg
            try:
                sampling = sampling_from_pb(leg.sampling)
            except CorunError as error:
                session.fail(leg.leg_id, error)
                continue
            self._sampling[leg.leg_id] = sampling
            session.start(
                leg.leg_id,
                tuple(leg.prompt.ids),
                sampling if start.hand_off else _first_only(sampling),
                stream=False,
                hand_off=start.hand_off,
            )
        for leg_id in request.cancel_leg_ids:
            if session.cancel(leg_id):
                self._sampling.pop(leg_id, None)
        for handoff_id in request.release_handoff_ids:
            session.release(handoff_id)

    def render(self, session: LegSession, outputs: Sequence[SessionOutput]) -> legs_pb2.RunPrefillsResponse:
        return legs_pb2.RunPrefillsResponse(
            finishes=[self._finish(session, leg_id, output) for leg_id, output in outputs]
        )

    def _finish(
        self, session: LegSession, leg_id: int, output: LegOutput
    ) -> legs_pb2.RunPrefillsResponse.Finish:
        sampling = self._sampling.pop(leg_id, None)
        if output.error is not None:
            return legs_pb2.RunPrefillsResponse.Finish(leg_id=leg_id, error=leg_error_to_pb(output.error))
        handoff = output.handoff
        if handoff is not None:
            handoff = replace(handoff, lease_s=session.lease_left_s(handoff))
        seed = 0 if sampling is None else sampling.seed
        reason = output.finish_reason
        if reason is FinishReason.LENGTH and sampling is not None and sampling.max_tokens > 1:
            reason = None  # Ours, of `_first_only`: the generation itself goes on.
        first = FirstToken(
            output.token_ids[0],
            RngState(self._host.info.rng_scheme, seed, step=1),
            output.logprobs[0] if output.logprobs else None,
        )
        return legs_pb2.RunPrefillsResponse.Finish(
            leg_id=leg_id,
            first_token=first_token_to_pb(first),
            finish_reason=finish_to_pb(reason),
            stop_token_id=output.stop_token_id,
            handoff=None if handoff is None else handoff_to_pb(handoff),
            prompt_logprobs=None
            if output.prompt_logprobs is None
            else logprobs_to_pb(output.prompt_logprobs),
        )


def _first_only(sampling: SamplingParams) -> SamplingParams:
    """The same first token, and none after it."""
    return replace(sampling, max_tokens=1, min_tokens=min(sampling.min_tokens, 1))
