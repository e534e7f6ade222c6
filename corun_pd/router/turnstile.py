"""Lets a few waiters through per turn of the event loop, in order.

One engine step has a token for every stream. If all of them wrote at once, the loop would write for tens
of milliseconds before it read again, and each token would be a message. Through a turnstile, reading and
writing take turns, and a stream that waits takes all that has come for it meanwhile: when the router is
idle a token is a message, and when it is busy many are.
"""

import asyncio
from collections import deque
from typing import Final

__all__ = ["Turnstile"]

#: Writing to a client takes about 0.1 ms, so the loop gets around to reading every other millisecond.
_PER_TURN: Final = 8


class Turnstile:
    """Wakes futures, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def push(self, waiter: "asyncio.Future[None]") -> None:
        """Sets the future's result when it is its turn."""
        if not self._queue:
            waiter.get_loop().call_soon(self._turn)
        self._queue.append(waiter)

    def _turn(self) -> None:
        for _ in range(min(_PER_TURN, len(self._queue))):
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._turn)
