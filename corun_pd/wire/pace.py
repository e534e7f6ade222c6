"""Messages of a busy call keep a distance, so that what comes meanwhile travels together.

A message costs far more than one more request or answer in it. The first one after a pause goes at once.
"""

import asyncio

__all__ = ["Pace"]


class Pace:
    """Await `turn` before each message."""

    def __init__(self, distance_s: float) -> None:
        """`distance_s` is between two messages at least, in seconds."""
        self._distance_s = distance_s
        self._next = 0.0

    async def turn(self) -> None:
        """Returns when the next message may go, after all that is ready in this turn of the event loop."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self._next - now))
        self._next = max(now, self._next) + self._distance_s
