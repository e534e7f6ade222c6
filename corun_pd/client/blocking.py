"""The blocking client: the async one, on an event loop in a thread of its own."""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from corun_pd.client.aio import AsyncClient
from corun_pd.client.request import Options, Prompt
from corun_pd.client.results import Delta, Fleet, GenerationResult, StreamStart
from corun_pd.client.retry import DEFAULT_RETRY, RetryPolicy
from corun_pd.client.stream import AsyncStream
from corun_pd.client.transport import Transport
from corun_pd.errors import Cancelled

__all__ = ["Client", "Stream"]

T = TypeVar("T")


class Client:
    """A client of one router; see AsyncClient. Safe to use from several threads at once.

    Ctrl-C while a call waits cancels it at the router. Threads do not survive a fork: a client is used
    in the process that made it, and raises RuntimeError in another.
    """

    def __init__(
        self,
        router: str | Transport,
        *,
        timeout_s: float | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        self._client = AsyncClient(router, timeout_s=timeout_s, retry=retry)
        self._worker = _Worker(self._client)
        # Also when the client is forgotten, or the program ends with it open.
        self._close = weakref.finalize(self, self._worker.stop)

    def generate(
        self, prompt: Prompt | None = None, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """Runs a generation and returns it whole; see AsyncClient.generate."""
        return self._worker.wait(self._client.generate(prompt, timeout_s=timeout_s, **options))

    def stream(
        self, prompt: Prompt | None = None, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> "Stream":
        """Runs a generation and returns it as it comes; see AsyncClient.stream."""
        return Stream(self._worker, self._client.stream(prompt, timeout_s=timeout_s, **options))

    def describe(self, *, timeout_s: float | None = None) -> Fleet:
        """The fleet: instances, contract and load."""
        return self._worker.wait(self._client.describe(timeout_s=timeout_s))

    def close(self) -> None:
        """Cancels what runs and closes the connection. Calls that wait in other threads get Cancelled."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream:
    """An iterator of deltas; see AsyncStream. Closing it, or leaving `with`, cancels the call."""

    def __init__(self, worker: "_Worker", stream: AsyncStream) -> None:
        self._worker = worker
        self._stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        delta = self._worker.wait(_next_or_none(self._stream))
        if delta is None:
            raise StopIteration
        return delta

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the call, if it is not over."""
        self._worker.wait(self._stream.aclose())

    @property
    def start(self) -> StreamStart | None:
        """The generation's name, fingerprint and seed; None before the first delta has come."""
        return self._stream.start

    @property
    def result(self) -> GenerationResult:
        """The whole answer. RuntimeError before the stream's end."""
        return self._stream.result


async def _next_or_none(stream: AsyncStream) -> Delta | None:
    return await anext(stream, None)


class _Worker:
    """The thread and its loop. Ends when told to; what still runs then is cancelled."""

    def __init__(self, client: AsyncClient) -> None:
        self._pid = os.getpid()
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(client,), name="corun-pd client", daemon=True)
        self._thread.start()
        self._loop = self._started.result()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the loop and waits for it; an interrupt of the wait cancels it."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client was closed" if os.getpid() == self._pid else "made before a fork")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the loop and, unless called in it, waits until it has ended."""
        if os.getpid() != self._pid:
            return
        with suppress(RuntimeError):  # the loop is closed: stopped before
            self._loop.call_soon_threadsafe(self._stopping.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, client: AsyncClient) -> None:
        asyncio.run(self._until_stopped(client))

    async def _until_stopped(self, client: AsyncClient) -> None:
        self._stopping = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        await client.aclose()
