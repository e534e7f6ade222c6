"""Running a coroutine as a command: signals end it, and it gets to clean up."""

import asyncio
import signal
from collections.abc import Coroutine

import uvloop

__all__ = ["serve"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(main: Coroutine[None, None, None]) -> None:
    """Runs a server until it returns, raises, or SIGINT or SIGTERM cancels it; a second one cancels again."""
    uvloop.run(_until_signal(main))


async def _until_signal(main: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    asked = False

    def cancel() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise
    finally:
        # A closed loop would keep the handlers, and swallow the signals from then on.
        for number in SIGNALS:
            loop.remove_signal_handler(number)
