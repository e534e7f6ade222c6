"""The async client."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self, Unpack

from corun_pd.client.request import GenerationRequest, Options, Prompt, build_request
from corun_pd.client.results import Fleet, GenerationResult, StreamEvent
from corun_pd.client.retry import DEFAULT_RETRY, Attempts, RetryPolicy
from corun_pd.client.stream import AsyncStream
from corun_pd.client.transport import GrpcTransport, Transport
from corun_pd.errors import Overloaded, Unavailable

__all__ = ["AsyncClient"]


class AsyncClient:
    """A client of one router, for one event loop.

    `router` is its address, host:port, or a Transport. `timeout_s` bounds every call that does not say
    otherwise, retries included. Errors are the classes of `corun_pd.errors`.
    """

    def __init__(
        self,
        router: str | Transport,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._transport = GrpcTransport(router) if isinstance(router, str) else router
        self._timeout_s = timeout_s
        self._retry = retry

    async def generate(
        self, prompt: Prompt | None = None, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """Runs a generation and returns it whole. Cancelling the task cancels the call.

        `prompt` is text or token ids; `options` are those of `Options`. Raises InvalidRequest before
        anything is sent for what cannot be sent, such as text that UTF-8 cannot hold.
        """
        return await self.run(build_request(prompt, options), timeout_s=timeout_s)

    async def run(self, request: GenerationRequest, *, timeout_s: float | None = None) -> GenerationResult:
        """Runs a request that was built before, with `build_request`."""
        attempts = self._attempts(timeout_s)
        while True:
            try:
                return await self._transport.generate(request, attempts.remaining_s)
            except (Unavailable, Overloaded) as error:
                await attempts.pause(error)

    def stream(
        self, prompt: Prompt | None = None, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Runs a generation and returns it as it comes. Tried again only before its first message."""
        return AsyncStream(self._events(build_request(prompt, options), timeout_s))

    @asynccontextmanager
    async def shared(self) -> AsyncGenerator[Self, None]:
        """The client over a call that all its generations share, for callers that have many under way.

        Answers, errors, deadlines and cancellation are the same; each costs less than a call of its own.
        The end of the context cancels what runs.
        """
        transport = self._transport.shared()
        try:
            yield type(self)(transport, timeout_s=self._timeout_s, retry=self._retry)
        finally:
            if transport is not self._transport:
                await transport.close()

    async def describe(self, *, timeout_s: float | None = None) -> Fleet:
        """The fleet: instances, contract and load."""
        attempts = self._attempts(timeout_s)
        while True:
            try:
                return await self._transport.describe(attempts.remaining_s)
            except (Unavailable, Overloaded) as error:
                await attempts.pause(error)

    async def aclose(self) -> None:
        """Cancels what runs and closes the connection."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _events(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[StreamEvent, None]:
        attempts = self._attempts(timeout_s)
        started = False
        while True:
            try:
                async with aclosing(self._transport.stream(request, attempts.remaining_s)) as events:
                    async for event in events:
                        started = True
                        yield event
                return
            except (Unavailable, Overloaded) as error:
                if started:
                    raise
                await attempts.pause(error)

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self._retry, self._timeout_s if timeout_s is None else timeout_s)
