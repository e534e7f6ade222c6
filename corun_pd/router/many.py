"""GenerateMany on the router's side: generations come and go, and what ended goes out together.

    requests ─► a task for each generation ─► finishes ─► one message at a time, as full as it gets

Messages keep a distance (`wire.pace`), so a client that has much under way costs few of them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from corun_pd.core import MAX_MESSAGE_BYTES
from corun_pd.errors import CorunError, DeadlineExceeded, EngineFailed, InvalidRequest
from corun_pd.router.company import Company, Gather, Seat
from corun_pd.v1 import router_pb2
from corun_pd.wire.pace import Pace
from corun_pd.wire.status import leg_error_to_pb

__all__ = ["ManyGenerations"]

logger = logging.getLogger(__name__)

Finish = router_pb2.GenerateManyResponse.Finish
Start = router_pb2.GenerateManyRequest.Start
Generate = Callable[[router_pb2.Generation, Seat | None], Awaitable[router_pb2.GenerateResponse]]

#: Finishes gather in one message up to about this size, in bytes.
_MESSAGE_BYTES: Final = 1 << 20

#: Between two messages, in seconds. Generations are whole when they come, so that nobody waits for a token.
_DISTANCE_S: Final = 0.005

#: What a message holds beside its one answer, at most.
_FRAME_BYTES: Final = 64


class ManyGenerations:
    """The generations of one call. `generate` makes one answer, or raises a CorunError.

    A generation that came with siblings has a seat in their company, which `gather` is for.
    """

    def __init__(self, generate: Generate, gather: Gather) -> None:
        self._generate = generate
        self._gather = gather
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outgoing: deque[router_pb2.GenerateManyResponse] = deque()
        self._outgoing_bytes = 0
        self._news = asyncio.Event()
        self._has_all_starts = False
        self._fault: CorunError | None = None

    async def serve(
        self,
        requests: AsyncIterator[router_pb2.GenerateManyRequest],
        write: Callable[[router_pb2.GenerateManyResponse], Awaitable[None]],
    ) -> None:
        """Serves the call until the client has sent all starts and has all finishes.

        However it ends, no generation is left. Raises InvalidRequest for a number that is in use: there is
        no telling the two generations apart.
        """
        pace = Pace(_DISTANCE_S)
        reader = asyncio.create_task(self._read(requests))
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await pace.turn()
                while self._outgoing:
                    await write(self._outgoing.popleft())
                if self._fault is not None:
                    raise self._fault
                if self._has_all_starts and not self._tasks and not self._outgoing:
                    reader.result()
                    return
        finally:
            reader.cancel()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(reader, *tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[router_pb2.GenerateManyRequest]) -> None:
        try:
            async for request in requests:
                for start in request.starts:
                    self._start(start)
                for number in request.cancel_numbers:
                    if (task := self._tasks.pop(number, None)) is not None:
                        task.cancel()
        except CorunError as error:
            self._fault = error
        finally:
            self._has_all_starts = True
            self._news.set()

    def _start(self, start: Start) -> None:
        members = [start, *start.siblings]
        company = Company(start.generation, len(members), self._gather) if len(members) > 1 else None
        for member in members:
            if member.number in self._tasks:
                raise InvalidRequest("starts.number", f"{member.number} is in use")
            if member.siblings and member is not start:
                raise InvalidRequest("starts.siblings", f"{member.number}, a sibling, has some of its own")
            seat = None if company is None else Seat(company)
            task = self._tasks[member.number] = asyncio.create_task(self._run(member, seat))
            if seat is not None:
                task.add_done_callback(seat.leave)

    async def _run(self, start: Start, seat: Seat | None) -> None:
        try:
            if start.HasField("timeout_duration"):
                answer = await self._within(start, seat)
            else:
                answer = await self._generate(start.generation, seat)
            size = answer.ByteSize()
            if size > MAX_MESSAGE_BYTES - _FRAME_BYTES:
                raise InvalidRequest("request", f"its answer of {size} bytes is larger than a message may be")
            self._finish(start.number, size).answer.CopyFrom(answer)
        except CorunError as error:
            self._fail(start.number, error)
        except Exception as error:
            logger.exception("a generation failed on a bug of the router's")
            self._fail(start.number, EngineFailed(f"the router has a bug: {error!r}"))

    def _fail(self, number: int, error: CorunError) -> None:
        message = leg_error_to_pb(error)
        self._finish(number, message.ByteSize()).error.CopyFrom(message)

    def _finish(self, number: int, size: int) -> Finish:
        """A finish in the newest outgoing message, or in a new one where `size` more bytes find no room."""
        self._tasks.pop(number, None)
        if not self._outgoing or self._outgoing_bytes + size > _MESSAGE_BYTES:
            self._outgoing.append(router_pb2.GenerateManyResponse())
            self._outgoing_bytes = 0
        self._outgoing_bytes += size
        self._news.set()
        return self._outgoing[-1].finishes.add(number=number)

    async def _within(self, start: Start, seat: Seat | None) -> router_pb2.GenerateResponse:
        timeout_s = start.timeout_duration.ToNanoseconds() / 1e9
        try:
            async with asyncio.timeout(timeout_s):
                return await self._generate(start.generation, seat)
        except TimeoutError:
            raise DeadlineExceeded(f"not done within {timeout_s} s") from None
