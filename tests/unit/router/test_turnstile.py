"""The budget of streamed messages."""

import asyncio
import time

import pytest

from corun_pd.router.turnstile import Turnstile


async def test_few_pass_without_waiting() -> None:
    """A router with few streams sends a message for each token."""
    turnstile = Turnstile()
    for _ in range(32):
        with pytest.raises(StopIteration):  # it ends without waiting for anything
            turnstile.passage().send(None)


async def test_many_pass_in_order_at_the_budgets_pace() -> None:
    """Those who have gone away hold nobody up and cost nothing."""
    turnstile = Turnstile()
    order: list[int] = []

    async def pass_by(number: int) -> None:
        await turnstile.passage()
        order.append(number)

    began = time.monotonic()
    tasks = [asyncio.create_task(pass_by(number)) for number in range(1032)]
    await asyncio.sleep(0)
    for task in tasks[32::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [*range(32), *range(33, 1032, 2)]
    assert time.monotonic() - began > 0.095  # 500 beyond the burst, at 5000 a second
