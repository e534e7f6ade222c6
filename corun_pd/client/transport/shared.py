"""GenerateMany on the client's side: one long call, over which all generations travel.

    generate() ─► outgoing message ─► the router
    generate() ◄─ finishes by number ◄─┘

A call for each generation costs both sides more than the generation does otherwise. What is started
or cancelled while the last message is being written goes into the next one. Generations of one prompt in one
message travel as siblings: the prompt once, which the router then has computed once.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from corun_pd.client.request import GenerationRequest
from corun_pd.client.results import Fleet, GenerationResult, StreamEvent
from corun_pd.client.transport import messages
from corun_pd.client.transport.base import Transport
from corun_pd.errors import Cancelled, CorunError, DeadlineExceeded, Unavailable
from corun_pd.v1 import router_pb2, router_pb2_grpc
from corun_pd.wire.pace import Pace
from corun_pd.wire.status import error_from_rpc, leg_error_from_pb

__all__ = ["SharedCallTransport"]

#: Prompts of more characters, or token ids, get a call of their own.
_LARGE: Final = 1 << 18

#: Starts gather in one message up to about this size, in bytes.
_MESSAGE_BYTES: Final = 1 << 20

#: Between two messages, in seconds.
_DISTANCE_S: Final = 0.005

#: What one of either takes in a message, about.
_BYTES_EACH: Final = 3

#: The router ends a generation whose time is up; a client whose router does not answer waits so much longer.
_GRACE_S: Final = 5.0

Answer = router_pb2.GenerateManyResponse.Finish
Call = grpc.aio.StreamStreamCall[router_pb2.GenerateManyRequest, router_pb2.GenerateManyResponse]


class SharedCallTransport:
    """`generate` over one call, which the first one opens, and again after one was lost; the rest over `own`.

    When the call is lost, what is under way fails as calls of their own would. `close` ends the call, not
    `own`.
    """

    def __init__(self, own: Transport, stub: router_pb2_grpc.RouterServiceStub) -> None:
        self._own = own
        self._stub = stub
        self._line: _Line | None = None

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        """The whole answer."""
        if _length(request) > _LARGE:
            return await self._own.generate(request, timeout_s)
        if self._line is None or self._line.is_over:
            self._line = _Line(self._stub.GenerateMany())
        if timeout_s is None:
            finish = await self._line.ask(request, None)
        else:
            try:
                async with asyncio.timeout(timeout_s + _GRACE_S):
                    finish = await self._line.ask(request, timeout_s)
            except TimeoutError:
                raise DeadlineExceeded(f"the router did not answer within {timeout_s} s") from None
        if finish.HasField("error"):
            raise leg_error_from_pb(finish.error)
        return messages.result_from_pb(finish.answer)

    def stream(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[StreamEvent, None]:
        """A call of its own."""
        return self._own.stream(request, timeout_s)

    def shared(self) -> Transport:
        """Itself, on a call of its own."""
        return SharedCallTransport(self._own, self._stub)

    async def describe(self, timeout_s: float | None) -> Fleet:
        """A call of its own."""
        return await self._own.describe(timeout_s)

    async def close(self) -> None:
        """Cancels what runs over the shared call."""
        if self._line is not None:
            await self._line.close()


class _Line:
    """One call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._outgoing: deque[router_pb2.GenerateManyRequest] = deque()
        self._outgoing_bytes = 0
        # The starts of the newest outgoing message, by their prompts.
        self._starts: dict[object, router_pb2.GenerateManyRequest.Start] = {}
        self._more = asyncio.Event()
        self._last_number = 0
        self._end: CorunError | None = None
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._end is not None

    async def ask(self, request: GenerationRequest, timeout_s: float | None) -> Answer:
        """How it ended. A caller that is cancelled cancels it."""
        self._last_number = number = self._last_number + 1
        start = self._start(request)
        start.number = number
        if timeout_s is not None:
            start.timeout_duration.CopyFrom(Duration(nanos=0))
            start.timeout_duration.FromNanoseconds(round(timeout_s * 1e9))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            return await answer
        finally:
            if self._waiting.pop(number, None) is not None and self._end is None:
                self._message().cancel_numbers.append(number)

    async def close(self) -> None:
        """Ends the call, and with it what runs."""
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def _start(self, request: GenerationRequest) -> router_pb2.GenerateManyRequest.Start:
        """A start in the outgoing message: among the siblings of one of the same prompt, if there is one."""
        prompt = request.messages if request.prompt is None else request.prompt
        if (first := self._starts.get(prompt)) is not None:
            sibling = first.siblings.add()
            messages.fill(sibling.generation, request, prompt=False)
            self._outgoing_bytes += sibling.ByteSize()
            return sibling
        start = self._message(_BYTES_EACH * _length(request)).starts.add()
        messages.fill(start.generation, request)
        self._starts[prompt] = start
        return start

    def _message(self, size: int = 0) -> router_pb2.GenerateManyRequest:
        """The outgoing message to add to, in which `size` more bytes find room."""
        if not self._outgoing or self._outgoing_bytes + size > _MESSAGE_BYTES:
            self._outgoing.append(router_pb2.GenerateManyRequest())
            self._outgoing_bytes = 0
            self._starts.clear()
        self._outgoing_bytes += size
        self._more.set()
        return self._outgoing[-1]

    async def _write(self) -> None:
        pace = Pace(_DISTANCE_S)
        # A call that has ended takes no more; the reader learns why.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._more.wait()
                self._more.clear()
                await pace.turn()
                while self._outgoing:
                    message = self._outgoing.popleft()
                    if not self._outgoing:
                        self._starts.clear()
                    await self._call.write(message)

    async def _read(self) -> None:
        end: CorunError = Cancelled("the client was closed")
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                for finish in cast(router_pb2.GenerateManyResponse, message).finishes:
                    answer = self._waiting.pop(finish.number, None)
                    if answer is not None and not answer.done():
                        answer.set_result(finish)
            await self._call.code()
            end = Unavailable("the router ended the call")
        except grpc.aio.AioRpcError as error:
            end = error_from_rpc(error)
        finally:
            self._end = end
            self._writer.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(_again(end))


def _length(request: GenerationRequest) -> int:
    """Of the prompt, in characters or token ids."""
    if request.prompt is not None:
        return len(request.prompt)
    return sum(len(message.content) for message in request.messages or ())


def _again(error: CorunError) -> CorunError:
    """The error anew, for one more waiter: errors gather tracebacks."""
    return Unavailable(error.message) if isinstance(error, Unavailable) else error
