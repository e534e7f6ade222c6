"""Outputs to the columns that cross the wire: many tokens, few messages."""

from collections.abc import Sequence

from corun_pd.engine.base import LegOutput
from corun_pd.engine.legs import SessionOutput
from corun_pd.v1 import legs_pb2
from corun_pd.wire.convert import finish_to_pb, logprobs_to_pb
from corun_pd.wire.status import leg_error_to_pb

__all__ = ["to_columns"]


def to_columns(
    outputs: Sequence[SessionOutput], streaming: set[int]
) -> tuple[legs_pb2.StepTokens | None, list[legs_pb2.LegFinish], list[int]]:
    """Splits outputs into the tokens of the legs in `streaming`, the ends of legs, and the other legs whose
    KV cache has been pulled.

    Takes the legs that ended out of `streaming`. Tokens are in the order of the steps.
    """
    tokens = legs_pb2.StepTokens()
    leg_ids: list[int] = []
    token_ids: list[int] = []
    finishes: list[legs_pb2.LegFinish] = []
    pulled: list[int] = []
    for leg_id, output in outputs:
        streams = leg_id in streaming
        if not streams and not output.is_last:
            pulled.append(leg_id)
        if streams:
            if output.logprobs:
                tokens.logprobs.extend(logprobs_to_pb([entry]) for entry in output.logprobs)
                tokens.logprob_rows.extend(range(len(leg_ids), len(leg_ids) + len(output.token_ids)))
            if output.prompt_logprobs is not None:
                tokens.prompt_logprobs.append(logprobs_to_pb(output.prompt_logprobs))
                tokens.prompt_logprob_rows.append(len(leg_ids))
            leg_ids.extend([leg_id] * len(output.token_ids))
            token_ids.extend(output.token_ids)
        if output.is_last:
            streaming.discard(leg_id)
            finishes.append(_finish(leg_id, output, with_tokens=not streams))
    tokens.leg_ids.extend(leg_ids)
    tokens.token_ids.extend(token_ids)
    return (tokens if leg_ids else None), finishes, pulled


def _finish(leg_id: int, output: LegOutput, *, with_tokens: bool) -> legs_pb2.LegFinish:
    if output.error is not None:
        return legs_pb2.LegFinish(
            leg_id=leg_id, kv_pulled_byte_count=output.kv_pulled_bytes, error=leg_error_to_pb(output.error)
        )
    prompt_logprobs = output.prompt_logprobs if with_tokens else None
    return legs_pb2.LegFinish(
        leg_id=leg_id,
        token_ids=output.token_ids if with_tokens else (),
        logprobs=logprobs_to_pb(output.logprobs) if with_tokens and output.logprobs else None,
        finish_reason=finish_to_pb(output.finish_reason),
        stop_token_id=output.stop_token_id,
        kv_pulled_byte_count=output.kv_pulled_bytes,
        prompt_logprobs=None if prompt_logprobs is None else logprobs_to_pb(prompt_logprobs),
    )
