"""A generation as it comes, and its deltas joined into the whole."""

from collections.abc import AsyncGenerator
from itertools import chain
from types import TracebackType
from typing import Self

from corun_pd.client.results import (
    Choice,
    Delta,
    GenerationResult,
    Placement,
    StreamEnd,
    StreamEvent,
    StreamStart,
)
from corun_pd.errors import EngineFailed

__all__ = ["AsyncStream"]


class AsyncStream:
    """An async iterator of deltas. Nothing is sent before the first one is asked for.

    Closing it (`aclose`, or leaving `async with`) cancels the call at the router; so does cancelling
    the task that waits for a delta. After the last delta, `result` is the whole answer.
    """

    def __init__(self, events: AsyncGenerator[StreamEvent, None]) -> None:
        self._events = events
        self._start: StreamStart | None = None
        self._deltas: dict[int, list[Delta]] = {}
        self._result: GenerationResult | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        async for event in self._events:
            match event:
                case StreamStart():
                    self._start = event
                case StreamEnd():
                    self._result = self._join(event)
                case Delta():
                    self._deltas.setdefault(event.index, []).append(event)
                    return event
        if self._result is None and not self._closed:
            raise EngineFailed("the stream ended before its end was told")
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancels the call, if it is not over."""
        self._closed = True
        await self._events.aclose()

    @property
    def start(self) -> StreamStart | None:
        """The generation's name, fingerprint and seed; None before the first delta has come."""
        return self._start

    @property
    def result(self) -> GenerationResult:
        """The whole answer, equal to what `generate` returns. RuntimeError before the stream's end."""
        if self._result is None:
            raise RuntimeError("the stream is not over")
        return self._result

    def _join(self, end: StreamEnd) -> GenerationResult:
        if self._start is None:
            raise EngineFailed("the stream has no start")
        return GenerationResult(
            generation_id=self._start.generation_id,
            choices=tuple(_joined(deltas) for _, deltas in sorted(self._deltas.items())),
            usage=end.usage,
            system_fingerprint=self._start.system_fingerprint,
            seed=self._start.seed,
            timings=end.timings,
            prompt=end.prompt,
        )


def _joined(deltas: list[Delta]) -> Choice:
    last = deltas[-1]
    if last.finish_reason is None or last.seed is None:
        raise EngineFailed(f"the stream ended in the middle of sample {last.index}")
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return Choice(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason,
        seed=last.seed,
        logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
        stop_reason=last.stop_reason,
        placement=last.placement or Placement(),
    )
