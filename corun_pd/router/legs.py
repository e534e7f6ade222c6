"""Legs as pipelines see them: `await prefill(...)`, `async for tokens in decode(...)`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from corun_pd.core import FinishReason, FirstToken, KvHandoff, SamplingParams, TokenLogprobs
from corun_pd.errors import CorunError, EngineFailed
from corun_pd.router.session import Session
from corun_pd.router.turnstile import Turnstile
from corun_pd.v1 import legs_pb2, sampling_pb2
from corun_pd.wire.convert import (
    finish_from_pb,
    first_token_from_pb,
    first_token_to_pb,
    handoff_from_pb,
    handoff_to_pb,
    logprobs_from_pb,
)
from corun_pd.wire.status import leg_error_from_pb

__all__ = ["DecodeSession", "GenerationSession", "LegTokens", "PrefillSession", "Prefilled", "TokenStream"]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill leg gave a sample: the first token and, unless the generation ended with it, the ticket.

    Where samples share a leg, the first one's alone has the prompt's logprobs.
    """

    first: FirstToken
    finish: FinishReason | None
    stop_token_id: int | None
    handoff: KvHandoff | None
    prompt_logprobs: Sequence[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class LegTokens:
    """Tokens of a decode or colocated leg since the last time. The last ones have `finish`.

    The first ones of a colocated leg have the prompt's logprobs too, when they were asked for.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] = ()
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    kv_pulled_bytes: int = 0
    prompt_logprobs: Sequence[TokenLogprobs] | None = None


class PrefillSession(Session[legs_pb2.RunPrefillsRequest, legs_pb2.RunPrefillsResponse, "_PrefillLeg"]):
    """The call to a prefill instance."""

    async def prefill(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        name: str,
        hand_off: bool,
        sibling_seeds: Sequence[int] = (),
    ) -> Sequence[Prefilled]:
        """Computes a prompt and samples a first token for each of the sampling's seed and `sibling_seeds`.

        Raises the leg's error, or the first sample's that failed. However it ends, no ticket stays behind
        that the caller has not got.
        """
        start = self._room_for(prompt).starts.add(hand_off=hand_off, sibling_seeds=sibling_seeds)
        leg_id = self._fill(start.leg, prompt, name, sampling, stream=False)
        waiting = self._legs[leg_id] = _PrefillLeg(asyncio.get_running_loop().create_future())
        try:
            finish = await waiting.finish
        except asyncio.CancelledError:
            if not waiting.finish.cancelled() and waiting.finish.exception() is None:
                self._release_all(waiting.finish.result())
            raise
        finally:
            self._leave(leg_id)
        try:
            if not finish.HasField("error") and len(finish.siblings) != len(sibling_seeds):
                counts = f"{len(finish.siblings)} samples beside the first, not {len(sibling_seeds)}"
                raise EngineFailed(f"the prefill instance gave {counts}")
            logprobs = _prompt_logprobs(finish)
            return [_prefilled(finish, logprobs), *(_prefilled(sibling) for sibling in finish.siblings)]
        except CorunError:
            self._release_all(finish)
            raise

    def release(self, handoff_id: str) -> None:
        """Frees a handoff that nobody will pull. One that is gone, or the empty id, is ignored."""
        if handoff_id and self._end is None:
            self._message().release_handoff_ids.append(handoff_id)

    def _release_all(self, finish: legs_pb2.RunPrefillsResponse.Finish) -> None:
        self.release(finish.handoff.handoff_id)
        for sibling in finish.siblings:
            self.release(sibling.handoff.handoff_id)

    def _dispatch(self, message: legs_pb2.RunPrefillsResponse) -> None:
        for finish in message.finishes:
            leg = self._legs.pop(finish.leg_id, None)
            if leg is None or leg.finish.done():  # cancelled while its ticket was on the way
                self._release_all(finish)
            else:
                leg.finish.set_result(finish)


def _prefilled(
    finish: legs_pb2.RunPrefillsResponse.Finish | legs_pb2.RunPrefillsResponse.Sibling,
    prompt_logprobs: Sequence[TokenLogprobs] | None = None,
) -> Prefilled:
    if finish.HasField("error"):
        raise leg_error_from_pb(finish.error)
    return Prefilled(
        first=first_token_from_pb(finish.first_token),
        finish=finish_from_pb(finish.finish_reason),
        stop_token_id=finish.stop_token_id if finish.HasField("stop_token_id") else None,
        handoff=handoff_from_pb(finish.handoff) if finish.HasField("handoff") else None,
        prompt_logprobs=prompt_logprobs,
    )


@dataclass(frozen=True, slots=True)
class _PrefillLeg:
    finish: "asyncio.Future[legs_pb2.RunPrefillsResponse.Finish]"

    def fail(self, error: CorunError) -> None:
        if not self.finish.done():
            self.finish.set_exception(error)


class TokenStream:
    """A leg's tokens as they come, in as few pieces as the reader's pace allows.

    Iterate within `with`: leaving it cancels a leg that is not over. `pulled`, when given, is called once
    the leg's KV cache is known to have been pulled.
    """

    def __init__(
        self,
        leave: Callable[[], None],
        turnstile: Turnstile | None,
        pulled: Callable[[], None] | None = None,
    ) -> None:
        """`leave` is called when nobody reads any more.

        `turnstile` is what the reader passes each time; None for a leg that comes in one piece.
        """
        self.token_ids: list[int] = []
        self.logprobs: list[sampling_pb2.Logprobs] = []
        self.prompt_logprobs: sampling_pb2.Logprobs | None = None
        self.finish: legs_pb2.LegFinish | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.pulled = pulled
        self._leave = leave
        self._turnstile = turnstile
        self._error: CorunError | None = None
        self._is_over = False

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def fail(self, error: CorunError) -> None:
        """Ends the leg; what has come before is read first."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Something has come."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> LegTokens:
        """What has come, waiting for something. Raises the leg's error."""
        if self._is_over:
            raise StopAsyncIteration
        while not self.token_ids and self.finish is None:
            if self._error is not None:
                raise self._error
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self._turnstile is not None:
            await self._turnstile.passage()
        token_ids, messages = self.token_ids, self.logprobs
        self.token_ids, self.logprobs = [], []
        streamed, self.prompt_logprobs = self.prompt_logprobs, None
        prompt_logprobs = None if streamed is None else logprobs_from_pb(streamed)
        finish = self.finish
        if finish is None:
            return LegTokens(token_ids, _entries(messages), prompt_logprobs=prompt_logprobs)
        self._is_over = True
        token_ids.extend(finish.token_ids)
        if finish.HasField("logprobs"):
            messages.append(finish.logprobs)
        return LegTokens(
            token_ids,
            _entries(messages),
            finish_from_pb(finish.finish_reason),
            finish.stop_token_id if finish.HasField("stop_token_id") else None,
            finish.kv_pulled_byte_count,
            _prompt_logprobs(finish) if streamed is None else prompt_logprobs,
        )


def _prompt_logprobs(
    finish: legs_pb2.RunPrefillsResponse.Finish | legs_pb2.LegFinish,
) -> Sequence[TokenLogprobs] | None:
    return logprobs_from_pb(finish.prompt_logprobs) if finish.HasField("prompt_logprobs") else None


def _entries(messages: Sequence[sampling_pb2.Logprobs]) -> Sequence[TokenLogprobs]:
    return [entry for message in messages for entry in logprobs_from_pb(message)] if messages else ()


def _dispatch_tokens(
    legs: dict[int, TokenStream], message: legs_pb2.RunDecodesResponse | legs_pb2.RunGenerationsResponse
) -> None:
    """One engine step's columns to the legs. Every token of every stream passes here."""
    tokens = message.tokens
    for leg_id, token_id in zip(tokens.leg_ids, tokens.token_ids, strict=True):
        leg = legs.get(leg_id)
        if leg is not None:
            leg.token_ids.append(token_id)
            if leg.waiter is not None:
                leg.wake()
    for row, logprobs in zip(tokens.logprob_rows, tokens.logprobs, strict=True):
        leg = legs.get(tokens.leg_ids[row])
        if leg is not None:
            leg.logprobs.append(logprobs)
    for row, logprobs in zip(tokens.prompt_logprob_rows, tokens.prompt_logprobs, strict=True):
        leg = legs.get(tokens.leg_ids[row])
        if leg is not None:
            leg.prompt_logprobs = logprobs
    for finish in message.finishes:
        leg = legs.pop(finish.leg_id, None)
        if leg is None:
            continue
        if finish.HasField("error"):
            leg.fail(leg_error_from_pb(finish.error))
        else:
            leg.finish = finish
            leg.wake()


class DecodeSession(Session[legs_pb2.RunDecodesRequest, legs_pb2.RunDecodesResponse, TokenStream]):
    """The call to a decode instance."""

    def decode(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        name: str,
        first: FirstToken,
        handoff: KvHandoff,
        stream: bool,
        pulled: Callable[[], None],
    ) -> TokenStream:
        """Goes on after `first`; it starts now. Without `stream` the tokens come together at the end."""
        start = self._room_for(prompt).starts.add(
            first_token=first_token_to_pb(first), handoff=handoff_to_pb(handoff)
        )
        leg_id = self._fill(start.leg, prompt, name, sampling, stream)
        tokens = TokenStream(partial(self._leave, leg_id), self._turnstile if stream else None, pulled)
        self._legs[leg_id] = tokens
        return tokens

    def _dispatch(self, message: legs_pb2.RunDecodesResponse) -> None:
        for leg_id in message.pulled_leg_ids:
            leg = self._legs.get(leg_id)
            if leg is not None and leg.pulled is not None:
                leg.pulled()
        _dispatch_tokens(self._legs, message)


class GenerationSession(
    Session[legs_pb2.RunGenerationsRequest, legs_pb2.RunGenerationsResponse, TokenStream]
):
    """The call to a colocated or standard instance."""

    def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, name: str, stream: bool
    ) -> TokenStream:
        """A whole sample; it starts now. Without `stream` the tokens come together at the end."""
        leg = self._room_for(prompt).starts.add()
        leg_id = self._fill(leg, prompt, name, sampling, stream)
        tokens = TokenStream(partial(self._leave, leg_id), self._turnstile if stream else None)
        self._legs[leg_id] = tokens
        return tokens

    def _dispatch(self, message: legs_pb2.RunGenerationsResponse) -> None:
        _dispatch_tokens(self._legs, message)
