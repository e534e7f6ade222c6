"""Several streams as one, without reading ahead: what piles up stays where it can be joined together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["merge"]

T = TypeVar("T")


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[list[tuple[int, T]], None]:
    """Yields what is ready, as (stream's index, item), at most one item of each stream at a time.

    The next item of a stream is asked for once the reader comes back for more. The first stream that
    raises ends all others, and its error is raised. Close it (`aclosing`); that closes the streams.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield [(0, item)]
        return
    ready: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()
    turns = [asyncio.Event() for _ in streams]

    async def pump(index: int) -> None:
        async with aclosing(streams[index]) as stream:
            async for item in stream:
                ready.put_nowait((index, item))
                await turns[index].wait()
                turns[index].clear()

    tasks = {asyncio.create_task(pump(index)) for index in range(len(streams))}
    for task in tasks:
        task.add_done_callback(ready.put_nowait)
    running = len(tasks)
    try:
        while running:
            items: list[tuple[int, T]] = []
            entries = [await ready.get()]
            while not ready.empty():
                entries.append(ready.get_nowait())
            for entry in entries:
                if isinstance(entry, asyncio.Task):
                    running -= 1
                    entry.result()
                else:
                    items.append(entry)
            if items:
                yield items
            for index, _ in items:
                turns[index].set()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
