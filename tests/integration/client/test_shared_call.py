"""Many generations over one call: answers, errors, deadlines and cancellation as with own calls."""

import asyncio
from typing import Any

import pytest

from corun_pd.client import AsyncClient, RetryPolicy
from corun_pd.core import Role
from corun_pd.errors import Cancelled, DeadlineExceeded, InvalidRequest
from tests.integration.conftest import MakeCluster

#: Half a thousand tokens whatever is drawn, so that none ends before it is looked at.
LONG: dict[str, Any] = {"max_tokens": 500, "seed": 7, "ignore_eos": True}

ONCE = RetryPolicy(max_attempts=1)


async def test_answers_and_errors_are_those_of_own_calls(make_cluster: MakeCluster) -> None:
    """200 at once, one of them bad, one with two samples; the bad one costs no other anything."""
    async with make_cluster(slots=16) as cluster, AsyncClient(cluster.address) as client:
        requests: list[dict[str, Any]] = [
            {"prompt": f"prompt {at}", "max_tokens": 8, "seed": at, "n": 1 + (at == 7)} for at in range(200)
        ]
        own = await asyncio.gather(*(client.generate(**request) for request in requests))
        async with client.shared() as calls:
            bad = asyncio.create_task(calls.generate("x", max_tokens=1 << 20))
            shared = await asyncio.gather(*(calls.generate(**request) for request in requests))
            with pytest.raises(InvalidRequest, match=r"sampling\.max_tokens"):
                await bad
        assert shared == own
        await cluster.until_idle(within_s=2)


async def test_a_cancelled_generation_ends_alone_and_frees_its_blocks(make_cluster: MakeCluster) -> None:
    """At the router and in the engines, while the call goes on (C21)."""
    async with make_cluster(decode_step_s=0.02) as cluster, AsyncClient(cluster.address) as client:
        async with client.shared() as calls:
            tasks = [asyncio.create_task(calls.generate("abc", **LONG)) for _ in range(3)]
            engine = cluster.node(Role.DECODE).engine
            await cluster.until(lambda: engine._running == 3)
            tasks[1].cancel()
            await cluster.until(lambda: engine._running == 2)
            with pytest.raises(DeadlineExceeded):
                await calls.generate("abc", **LONG, timeout_s=0.05)
            await cluster.until(lambda: cluster.router.service.running == 2)
            assert not tasks[0].done()
        await cluster.until_idle(within_s=2)
        assert not cluster.router.service.running
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lost_call_fails_what_runs_and_the_next_opens_another(make_cluster: MakeCluster) -> None:
    """As the end of a router does with calls of their own."""
    async with (
        make_cluster(decode_step_s=0.005) as cluster,
        AsyncClient(cluster.address, retry=ONCE) as client,
        client.shared() as calls,
    ):
        task = asyncio.create_task(calls.generate("abc", **LONG))
        await cluster.until(lambda: cluster.router.service.running == 1)
        transport: Any = calls._transport
        transport._line._call.cancel()
        with pytest.raises(Cancelled):
            await task
        await cluster.until_idle(within_s=2)
        assert (await calls.generate("abc", max_tokens=4)).choices
