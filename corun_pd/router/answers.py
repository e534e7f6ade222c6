"""Deltas to the messages that clients get."""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from corun_pd.core import TokenLogprobs
from corun_pd.errors import EngineFailed
from corun_pd.router.pipeline import Delta
from corun_pd.v1 import router_pb2
from corun_pd.wire.convert import finish_to_pb, logprobs_to_pb

__all__ = ["choice_of", "delta_to_pb", "scored_prompt", "timings_to_pb"]


def choice_of(index: int, seed: int, deltas: list[Delta], wants_text: bool) -> router_pb2.Choice:
    """A whole sample from all its deltas."""
    last = deltas[-1]
    entries = [entry for delta in deltas for entry in delta.logprobs]
    choice = router_pb2.Choice(
        index=index,
        text="".join([delta.text for delta in deltas]) if wants_text else "",
        logprobs=logprobs_to_pb(entries) if entries else None,
        finish_reason=finish_to_pb(last.finish),
        stop_string=last.stop if isinstance(last.stop, str) else None,
        stop_token_id=last.stop if isinstance(last.stop, int) else None,
        seed=seed,
        placement=_placement(last),
    )
    for delta in deltas:
        choice.token_ids.extend(delta.token_ids)
    return choice


def delta_to_pb(index: int, seed: int, delta: Delta, wants_text: bool) -> router_pb2.ChoiceDelta:
    """A part of a sample; the last one with its end."""
    message = router_pb2.ChoiceDelta(
        index=index,
        text=delta.text if wants_text else "",
        token_ids=delta.token_ids,
        logprobs=logprobs_to_pb(delta.logprobs) if delta.logprobs else None,
    )
    if delta.finish is not None:
        message.finish_reason = finish_to_pb(delta.finish)
        message.seed = seed
        placement = _placement(delta)
        if placement is not None:
            message.placement.CopyFrom(placement)
        if isinstance(delta.stop, str):
            message.stop_string = delta.stop
        elif delta.stop is not None:
            message.stop_token_id = delta.stop
    return message


def scored_prompt(prompt: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> router_pb2.ScoredPrompt:
    """The prompt with its logprobs. Raises EngineFailed when the engine gave none, or not all."""
    found = None if logprobs is None else len(logprobs)
    if logprobs is None or found != len(prompt) - 1:
        raise EngineFailed(f"the engine gave {found} logprobs for a prompt of {len(prompt)} tokens")
    return router_pb2.ScoredPrompt(token_ids=prompt, logprobs=logprobs_to_pb(logprobs))


def timings_to_pb(arrived: float, admitted: float, first: float, last: float) -> router_pb2.Timings:
    """Durations from moments on the monotonic clock, in seconds."""
    timings = router_pb2.Timings()
    _set(timings.queue_duration, admitted - arrived)
    _set(timings.first_token_duration, first - arrived)
    _set(timings.total_duration, last - arrived)
    return timings


def _placement(delta: Delta) -> router_pb2.Placement | None:
    if delta.place is None:
        return None
    return router_pb2.Placement(
        prefill_instance_id=delta.place.prefill,
        decode_instance_id=delta.place.decode,
        kv_moved_byte_count=delta.place.kv_moved_bytes,
        replay_count=delta.place.replays,
    )


def _set(duration: Duration, seconds: float) -> None:
    duration.seconds = whole = int(seconds)
    duration.nanos = int((seconds - whole) * 1e9)
