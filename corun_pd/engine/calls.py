"""How every leg service serves a call: read starts and cancels, write what the engine gives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import CorunError

__all__ = ["serve_legs"]

Request = TypeVar("Request")
Response = TypeVar("Response")


async def serve_legs(
    host: LegHost,
    requests: AsyncIterator[Request],
    accept: Callable[[LegSession, Request], None],
    render: Callable[[LegSession, Sequence[SessionOutput]], Response],
    write: Callable[[Response], Awaitable[None]],
) -> None:
    """Serves one call to its end.

    `accept` starts and cancels what a request asks for; `render` makes one response of all outputs since
    the last one. When the caller has sent its last request, the call ends with its last leg. However it
    ends, its legs are cancelled and its handoffs released. Raises the CorunError that ended it.
    """
    session = host.open()
    reader = asyncio.create_task(_read(session, requests, accept))
    try:
        async for batch in session.batches():
            await write(render(session, batch))
        if reader.done():  # Else the host ended the call, and the caller may have more to say.
            reader.result()
    finally:
        reader.cancel()
        session.close()


async def _read(
    session: LegSession, requests: AsyncIterator[Request], accept: Callable[[LegSession, Request], None]
) -> None:
    try:
        async for request in requests:
            accept(session, request)
    except CorunError as error:
        session.end(error)
    finally:
        session.finish()
