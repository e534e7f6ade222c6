"""Samples of one generation as one stream."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from corun_pd.router.merge import merge

closed: list[int] = []


async def count(stream: int, items: int, fail: bool = False) -> AsyncGenerator[int, None]:
    try:
        for item in range(items):
            await asyncio.sleep(0)
            yield item
        if fail:
            raise ValueError(stream)
        if items == 0:
            await asyncio.Event().wait()
    finally:
        closed.append(stream)


async def drain(merged: AsyncGenerator[list[tuple[int, int]], None]) -> None:
    async with aclosing(merged):
        async for _ in merged:
            pass


@pytest.fixture(autouse=True)
def forget() -> None:
    closed.clear()


@pytest.mark.parametrize("streams", [1, 3])
async def test_every_item_comes_once_and_in_order(streams: int) -> None:
    """Of each stream; one stream needs no tasks."""
    found: dict[int, list[int]] = {}
    async with aclosing(merge([count(i, 4 + i) for i in range(streams)])) as merged:
        async for items in merged:
            assert len({index for index, _ in items}) == len(items)
            for index, item in items:
                found.setdefault(index, []).append(item)
    assert found == {i: list(range(4 + i)) for i in range(streams)}
    assert sorted(closed) == list(range(streams))


async def test_first_failure_ends_all_streams() -> None:
    """One that would go on for ever is closed, and its clean-up has run when the error arrives."""
    with pytest.raises(ValueError, match="1"):
        await drain(merge([count(0, 0), count(1, 2, fail=True)]))
    assert sorted(closed) == [0, 1]


async def test_closing_closes_every_stream() -> None:
    """A client that goes away cancels all samples."""
    async with aclosing(merge([count(0, 9), count(1, 0), count(2, 9)])) as merged:
        async for _ in merged:
            break
    assert sorted(closed) == [0, 1, 2]


async def test_no_stream_runs_ahead_of_its_reader() -> None:
    """What piles up meanwhile stays in the leg, where tokens are joined."""
    made: list[int] = []

    async def eager(stream: int) -> AsyncGenerator[int, None]:
        for item in range(9):
            made.append(stream)
            yield item

    async with aclosing(merge([eager(0), eager(1)])) as merged:
        async for _ in merged:
            await asyncio.sleep(0.01)
            break
    assert made.count(0) == made.count(1) == 1
