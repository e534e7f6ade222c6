"""One long-lived call to one instance, over which all its legs travel.

    prefill() / decode() / generate()  ─► outgoing messages ─► the instance
    pipelines that wait                ◄─ dispatch by leg id ◄─┘

A call costs far more than a message, and a message more than a leg in it: whatever is started, cancelled
or released soon after the last message goes into the next one (`wire.pace`). When the call ends, every leg
in it fails with the reason. `legs` has the three kinds of calls.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar, cast

import grpc

from corun_pd.core import InstanceInfo, SamplingParams
from corun_pd.errors import CorunError, Unavailable
from corun_pd.router.turnstile import Turnstile
from corun_pd.v1 import legs_pb2
from corun_pd.wire.convert import sampling_to_pb
from corun_pd.wire.pace import Pace
from corun_pd.wire.status import error_from_rpc

__all__ = ["Call", "Session"]

#: Starts gather in one message up to about this size.
_MESSAGE_BYTES: Final = 4 << 20

#: Between two messages, in seconds.
_DISTANCE_S: Final = 0.002

#: The most wire bytes of a token id below 2^21.
_TOKEN_BYTES: Final = 3


class Waits(Protocol):
    """A leg as the session sees it."""

    def fail(self, error: CorunError) -> None:
        """Ends the leg."""


Request = TypeVar(
    "Request", legs_pb2.RunPrefillsRequest, legs_pb2.RunDecodesRequest, legs_pb2.RunGenerationsRequest
)
Response = TypeVar("Response")
Leg = TypeVar("Leg", bound=Waits)
Call = grpc.aio.StreamStreamCall[Request, Response]


class Session(ABC, Generic[Request, Response, Leg]):
    """What the three kinds of calls share."""

    def __init__(
        self,
        info: InstanceInfo,
        call: "Call[Request, Response]",
        new: Callable[[], Request],
        turnstile: Turnstile,
    ) -> None:
        """`call` is open; `new` makes an empty message for it. Nothing moves until `run`.

        `turnstile` is what pipelines pass that wait for tokens; all sessions share one.
        """
        self.info = info
        self._turnstile = turnstile
        self._call: Call[Request, Response] = call
        self._new: Callable[[], Request] = new
        self._legs: dict[int, Leg] = {}
        self._outgoing: deque[Request] = deque()
        self._outgoing_bytes = 0
        self._more = asyncio.Event()
        self._pace = Pace(_DISTANCE_S)
        self._last_id = 0
        self._end: str | None = None
        self._is_closed = False

    def close(self) -> None:
        """Ends the call, and so `run`."""
        self._is_closed = True
        self._call.cancel()

    async def run(self) -> str:
        """Writes and reads until the call ends; then fails its legs and returns why it ended."""
        writer = asyncio.ensure_future(self._write())
        end = "the router left it"
        try:
            end = await self._read()
        finally:
            self._end = end
            writer.cancel()
            self._call.cancel()
            for leg in self._legs.values():
                leg.fail(self._lost())
            self._legs.clear()
        return end

    async def _read(self) -> str:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._dispatch(cast(Response, message))
            code, details = await self._call.code(), await self._call.details()
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error).message
        except asyncio.CancelledError:
            if not self._is_closed:  # else it is how a call that is cancelled ends its reader
                raise
            return "the router ended the call"
        return "it ended the call" if code is grpc.StatusCode.OK else f"{details} ({code.name})"

    def _lost(self) -> Unavailable:
        """What a leg gets when the call has ended. A new one each time: errors gather tracebacks."""
        who = f"instance {self.info.instance_id} at {self.info.address}"
        return Unavailable(f"{who} was lost: {self._end}", instance_id=self.info.instance_id)

    async def _write(self) -> None:
        # A call that has ended takes no more; the reader learns why.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._more.wait()
                self._more.clear()
                await self._pace.turn()
                while self._outgoing:
                    await self._call.write(self._outgoing.popleft())

    def _message(self, size: int = 0) -> Request:
        """The outgoing message to add to, in which about `size` more bytes find room."""
        if not self._outgoing or self._outgoing_bytes + size > _MESSAGE_BYTES:
            self._outgoing.append(self._new())
            self._outgoing_bytes = 0
        self._outgoing_bytes += size
        self._more.set()
        return self._outgoing[-1]

    def _room_for(self, prompt: Sequence[int]) -> Request:
        """The message to start a leg of that prompt in. Raises Unavailable when the call has ended."""
        if self._end is not None:
            raise self._lost()
        return self._message(_TOKEN_BYTES * len(prompt))

    def _fill(
        self, leg: legs_pb2.Leg, prompt: Sequence[int], name: str, sampling: SamplingParams, stream: bool
    ) -> int:
        """Makes the leg, which is in its message already, a new one. Returns its id."""
        self._last_id += 1
        leg.leg_id = self._last_id
        leg.generation_id = name
        leg.prompt.ids.extend(prompt)
        leg.sampling.CopyFrom(sampling_to_pb(sampling))
        leg.stream = stream
        return self._last_id

    def _leave(self, leg_id: int) -> None:
        """Nobody listens to the leg any more: cancels it, if it is not over."""
        if self._legs.pop(leg_id, None) is not None:
            self._message().cancel_leg_ids.append(leg_id)

    @abstractmethod
    def _dispatch(self, message: Response) -> None:
        """Gives a message's contents to its legs; those that nobody listens to any more are passed over."""
