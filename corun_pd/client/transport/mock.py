"""A router for tests of programs that use the client: canned answers, no network.

    def answer(request: GenerationRequest) -> GenerationResult:
        return make_result(f"{request.prompt}, and so on")

    with Client(MockTransport(answer)) as client:
        assert client.generate("Once").text == "Once, and so on"

Streams are made of the same answers.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

from corun_pd.client.request import GenerationRequest
from corun_pd.client.results import (
    Choice,
    Delta,
    Fleet,
    GenerationResult,
    Placement,
    StreamEnd,
    StreamEvent,
    StreamStart,
    Usage,
)
from corun_pd.client.transport.base import Transport
from corun_pd.core import MAX_MESSAGE_BYTES, FinishReason
from corun_pd.errors import CorunError, Unavailable

__all__ = ["MockTransport", "make_result"]

Reply = GenerationResult | CorunError
Answer = Callable[[GenerationRequest], Reply | Awaitable[Reply]]


def make_result(*texts: str, seed: int = 0, prompt_tokens: int = 1) -> GenerationResult:
    """An answer with a sample per text and a token per character, for tests."""
    stop, there = FinishReason.STOP, Placement("mock")
    choices = tuple(
        Choice(index, text, tuple(map(ord, text)), stop, seed + index, placement=there)
        for index, text in enumerate(texts)
    )
    usage = Usage(prompt_tokens, sum(len(choice.token_ids) for choice in choices))
    return GenerationResult("mock", choices, usage, "mock", seed)


class MockTransport:
    """Answers from a function of the request (plain or async), or from a list, one a call.

    An answer that is a CorunError is raised. `requests` holds every request seen, retries included;
    `cancelled` counts the calls that were cancelled or whose stream was closed before its end.
    """

    def __init__(
        self, answers: GenerationResult | Sequence[Reply] | Answer, fleet: Fleet | None = None
    ) -> None:
        self._answer = answers if callable(answers) else _one_by_one(answers)
        self._fleet = fleet or Fleet("mock", {}, (), 0, 0, MAX_MESSAGE_BYTES)
        self.requests: list[GenerationRequest] = []
        self.cancelled = 0
        self.closed = False

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        """The next answer."""
        self.requests.append(request)
        try:
            reply = self._answer(request)
            if isinstance(reply, Awaitable):
                reply = await reply
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(reply, CorunError):
            raise reply
        return reply

    async def stream(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The next answer, a delta per token while text and tokens are equally long, else one delta."""
        result = await self.generate(request, timeout_s)
        whole = False
        try:
            for event in _events(result):
                yield event
            whole = True
        finally:
            self.cancelled += not whole

    def shared(self) -> Transport:
        """Itself."""
        return self

    async def describe(self, timeout_s: float | None) -> Fleet:
        """The fleet that was given, or one without instances."""
        return self._fleet

    async def close(self) -> None:
        """Remembers that it was closed."""
        self.closed = True


def _one_by_one(answers: GenerationResult | Sequence[Reply]) -> Answer:
    if isinstance(answers, GenerationResult):
        return lambda request: answers
    left = iter(answers)
    return lambda request: next(left, Unavailable("the mock has no answers left"))


def _events(result: GenerationResult) -> Iterator[StreamEvent]:
    yield StreamStart(
        result.generation_id, result.system_fingerprint, result.seed, result.usage.prompt_tokens
    )
    for choice in result.choices:
        ids, last = choice.token_ids, len(choice.token_ids) - 1
        per_token = len(choice.text) == len(ids)
        for at in range(len(ids) if per_token else 1):
            part = slice(at, at + 1) if per_token else slice(None)
            end = not per_token or at == last
            yield Delta(
                index=choice.index,
                text=choice.text[part],
                token_ids=ids[part],
                logprobs=choice.logprobs and choice.logprobs[part],
                finish_reason=choice.finish_reason if end else None,
                stop_reason=choice.stop_reason if end else None,
                seed=choice.seed if end else None,
                placement=choice.placement if end else None,
            )
    yield StreamEnd(result.usage, result.timings)
