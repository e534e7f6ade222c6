"""PrefillService: computes prompts and hands their KV caches over."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TypedDict

import grpc

from corun_pd.core import FinishReason, FirstToken, RngState, SamplingParams
from corun_pd.engine.base import LegOutput
from corun_pd.engine.calls import serve_legs
from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import CorunError, EngineFailed
from corun_pd.v1 import kv_handoff_pb2, legs_pb2, legs_pb2_grpc, sampling_pb2
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
    """What a call remembers of its legs between start and finish: sampling, and the seeds of siblings."""

    def __init__(self, host: LegHost) -> None:
        self._host = host
        self._started: dict[int, tuple[SamplingParams, tuple[int, ...]]] = {}

    def accept(self, session: LegSession, request: legs_pb2.RunPrefillsRequest) -> None:
        for start in request.starts:
            leg = start.leg
            try:
                sampling = sampling_from_pb(leg.sampling)
            except CorunError as error:
                session.fail(leg.leg_id, error)
                continue
            seeds = tuple(start.sibling_seeds)
            self._started[leg.leg_id] = sampling, seeds
            session.start(
                leg.leg_id,
                tuple(leg.prompt.ids),
                sampling if start.hand_off else _first_only(sampling),
                stream=False,
                hand_off=start.hand_off,
                sibling_seeds=seeds,
            )
        for leg_id in request.cancel_leg_ids:
            if session.cancel(leg_id):
                self._started.pop(leg_id, None)
        for handoff_id in request.release_handoff_ids:
            session.release(handoff_id)

    def render(self, session: LegSession, outputs: Sequence[SessionOutput]) -> legs_pb2.RunPrefillsResponse:
        return legs_pb2.RunPrefillsResponse(
            finishes=[self._finish(session, leg_id, output) for leg_id, output in outputs]
        )

    def _finish(
        self, session: LegSession, leg_id: int, output: LegOutput
    ) -> legs_pb2.RunPrefillsResponse.Finish:
        started = self._started.pop(leg_id, None)
        if output.error is not None or started is None:
            return legs_pb2.RunPrefillsResponse.Finish(leg_id=leg_id, **self._facts(session, output))
        sampling, sibling_seeds = started
        if len(output.siblings) != len(sibling_seeds):
            for handoff in output.handoffs:
                session.release(handoff.handoff_id)
            counts = f"{1 + len(output.siblings)} samples of {1 + len(sibling_seeds)}"
            short = EngineFailed(f"the engine gave {counts}")
            return legs_pb2.RunPrefillsResponse.Finish(leg_id=leg_id, error=leg_error_to_pb(short))
        siblings = [
            legs_pb2.RunPrefillsResponse.Sibling(
                **self._facts(session, sibling, replace(sampling, seed=seed))
            )
            for seed, sibling in zip(sibling_seeds, output.siblings, strict=True)
        ]
        return legs_pb2.RunPrefillsResponse.Finish(
            leg_id=leg_id,
            prompt_logprobs=None
            if output.prompt_logprobs is None
            else logprobs_to_pb(output.prompt_logprobs),
            siblings=siblings,
            **self._facts(session, output, sampling),
        )

    def _facts(
        self, session: LegSession, output: LegOutput, sampling: SamplingParams | None = None
    ) -> "_Facts":
        """What a leg and a sibling of one have alike."""
        if output.error is not None or sampling is None:
            error = output.error or EngineFailed("a leg ended that was never started")
            return {"error": leg_error_to_pb(error)}
        handoff = output.handoff
        if handoff is not None:
            handoff = replace(handoff, lease_s=session.lease_left_s(handoff))
        reason = output.finish_reason
        if reason is FinishReason.LENGTH and sampling.max_tokens > 1:
            reason = None  # Ours, of `_first_only`: the generation itself goes on.
        first = FirstToken(
            output.token_ids[0],
            RngState(self._host.info.rng_scheme, sampling.seed, step=1),
            output.logprobs[0] if output.logprobs else None,
        )
        return {
            "first_token": first_token_to_pb(first),
            "finish_reason": finish_to_pb(reason),
            "stop_token_id": output.stop_token_id,
            "handoff": None if handoff is None else handoff_to_pb(handoff),
        }


class _Facts(TypedDict, total=False):
    first_token: kv_handoff_pb2.FirstToken
    finish_reason: sampling_pb2.FinishReason
    stop_token_id: int | None
    handoff: kv_handoff_pb2.KvHandoff | None
    error: legs_pb2.LegError


def _first_only(sampling: SamplingParams) -> SamplingParams:
    """The same first token, and none after it."""
    return replace(sampling, max_tokens=1, min_tokens=min(sampling.min_tokens, 1))
