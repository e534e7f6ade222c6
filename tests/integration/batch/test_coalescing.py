"""Lines of one prompt: computed once, answered each on its own, with the bytes of separate requests."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from corun_pd.batch import Answer, FileJob, InputFiles, Order, OutputFiles, run_job
from corun_pd.client import AsyncClient, GenerationResult, Route, Usage, build_request
from corun_pd.core import InstanceLoad, Role
from corun_pd.errors import EngineFailed, InvalidRequest
from tests.integration.batch.test_on_a_cluster import model_of
from tests.integration.conftest import Cluster, MakeCluster
from tests.unit.batch.make import make_line, write_lines

GROUPS, SIZE = 64, 8


def make_group(number: int, model: str) -> list[dict[str, Any]]:
    """Lines of one prompt, as text, as token ids or as a chat, with seeds of their own."""
    text = f"Question {number}: " + "why? " * (number % 9)
    given: dict[str, Any] = [
        {"prompt": text, "logprobs": 2},
        {"prompt": list(text.encode()), "stop": ["e"]},
        {"chat": True, "messages": [{"role": "user", "content": text}], "temperature": 0.7},
    ][number % 3]
    limits = {"model": model, "max_tokens": 4 + number % 5}
    return [make_line(f"{number}-{at}", **limits, **given, seed=100 * number + at) for at in range(SIZE)]


async def run(client: AsyncClient, lines: list[dict[str, Any]], **options: Any) -> list[Answer]:
    """A job's answers, in order."""
    async with aclosing(run_job(iter(lines), client, route=Route.DISAGGREGATED, **options)) as job:
        return sorted([answer async for answer in job], key=lambda answer: answer.index)


def kill(cluster: Cluster, role: Role) -> None:
    """An instance of the role dies, and is out of the cluster's accounts."""
    dead = cluster.node(role)
    cluster.nodes.remove(dead)
    dead.engine.die()


async def work(cluster: Cluster) -> InstanceLoad:
    """What the prefill instances have done."""
    loads = [await node.engine.load() for node in cluster.nodes if node.info.role is Role.PREFILL]
    return InstanceLoad(
        prefilled_tokens=sum(load.prefilled_tokens for load in loads),
        sampled_tokens=sum(load.sampled_tokens for load in loads),
    )


class Separate(AsyncClient):
    """A client that has a call for each request, so that nothing is shared."""

    @asynccontextmanager
    async def shared(self) -> AsyncGenerator[Self, None]:
        yield self


async def test_groups_prefill_once_and_equal_separate_requests_in_every_byte(
    make_cluster: MakeCluster,
) -> None:
    """64 groups of 8 lines, in order and in disorder: the prompt tokens of 64 prompts, the bytes of 512
    requests (C11)."""
    async with make_cluster(prefill=2, slots=16) as cluster:
        groups = [make_group(number, model_of(cluster)) for number in range(GROUPS)]
        lines = [line for group in groups for line in group]
        mixed = random.Random(3).sample(lines, len(lines))
        before = await work(cluster)
        async with AsyncClient(cluster.address) as client:
            found = await run(client, lines, order=Order.INPUT)
            once = await work(cluster)
            again = await run(client, mixed)  # wherever they stand, within the look-ahead
            twice = await work(cluster)
        async with Separate(cluster.address) as client:
            alone = await run(client, lines)
        assert all(answer.error is None for answer in found)
        assert [answer.data for answer in found] == [answer.data for answer in alone]
        assert {answer.data for answer in again} == {answer.data for answer in alone}
        tokens = {answer.custom_id: answer.measure.prompt_tokens for answer in found}
        prompts = sum(tokens[f"{number}-0"] for number in range(GROUPS))
        assert once.prefilled_tokens == twice.prefilled_tokens - once.prefilled_tokens == prompts
        assert (await work(cluster)).prefilled_tokens - twice.prefilled_tokens == sum(tokens.values())
        assert once.sampled_tokens - before.sampled_tokens == GROUPS * SIZE
        drawn = {tuple(c.token_ids for c in a.result.choices) for a in found if a.result is not None}
        assert len(drawn) > 2 * GROUPS  # the control: the lines of a group differ
        await cluster.until_idle(within_s=2)


async def test_lines_drawn_otherwise_share_a_prompt_only_with_their_like(make_cluster: MakeCluster) -> None:
    """One prompt, three kinds of sampling: computed three times. Stop strings are the router's alone."""
    async with make_cluster(slots=16) as cluster, AsyncClient(cluster.address) as client:
        model = model_of(cluster)
        kinds: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"top_k": 7}, {"stop": ["a"]}]
        lines = [
            make_line(f"{kind}-{at}", model=model, prompt="the same", **kinds[kind])
            for at in range(3)
            for kind in range(4)
        ]
        found = await run(client, lines)
        assert (await work(cluster)).prefilled_tokens == 3 * len("the same")
        alone = await run(client, lines, concurrency=1)
        assert [answer.data for answer in found] == [answer.data for answer in alone]


async def test_a_bad_line_and_a_failed_one_leave_their_group_alone(make_cluster: MakeCluster) -> None:
    """Each line of a group fails on its own; those that want the prompt's logprobs have it for themselves."""
    async with make_cluster(slots=16, router={"max_replays": 0}) as cluster:
        cluster.node(Role.DECODE).engine.faults.fail_leg = lambda work: work.sampling.seed == 7
        async with AsyncClient(cluster.address) as client:
            model = model_of(cluster)
            bodies: list[dict[str, Any]] = [
                {"seed": 1},
                {"seed": 2, "top_p": 0},
                {"seed": 7},
                {"seed": 3, "prompt_logprobs": 1},
                {"seed": 4},
            ]
            lines = [make_line(f"{at}", model=model, **body) for at, body in enumerate(bodies)]
            found = await run(client, lines)
            assert isinstance(found[1].error, InvalidRequest)
            assert isinstance(found[2].error, EngineFailed)
            assert (await work(cluster)).prefilled_tokens == 2 * len("hi")
            too_long = [make_line(f"{at}", model=model, prompt="x" * 5000) for at in range(3)]
            refused = await run(client, too_long)
            assert [json.loads(a.data)["response"]["body"]["error"]["param"] for a in refused] == [
                "prompt"
            ] * 3
        await cluster.until_idle(within_s=2)
    texts = [answer.result.text for answer in found if answer.result is not None]
    assert len(texts) == 3


@pytest.mark.parametrize("which", [(0,), (0, 1, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06])
async def test_members_that_are_cancelled_leave_nothing_behind_and_nobody_waiting(
    make_cluster: MakeCluster, which: tuple[int, ...], after_s: float
) -> None:
    """While they queue, prefill, are handed over, are pulled and decode (C21)."""
    slow = {"prefill_s_per_token": 0.0003, "transfer_s": 0.02, "decode_step_s": 0.002}
    requests = [build_request([5] * 100, {"max_tokens": 20, "ignore_eos": True, "seed": s}) for s in range(4)]
    async with make_cluster(slots=2, **slow) as cluster, AsyncClient(cluster.address) as client:
        async with client.shared() as calls:
            tasks = [asyncio.create_task(calls.run(request)) for request in requests]
            await asyncio.sleep(after_s)
            for at in which:
                tasks[at].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.until_idle(within_s=2)
        assert not cluster.router.service.running
        for at, (request, result) in enumerate(zip(requests, results, strict=True)):
            if at not in which:
                assert result == await client.run(request)


async def test_a_rollout_survives_the_death_of_an_instance_of_each_role(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Groups whose instance dies are run again on others: one file, the same bytes, nothing left."""
    outputs = []
    for is_killed in (False, True):
        slow = {"prefill_s_per_token": 0.0001, "decode_step_s": 0.002}
        async with make_cluster(prefill=2, decode=2, slots=8, **slow) as cluster:
            lines = [line for number in range(24) for line in make_group(number, model_of(cluster))]
            path, out = write_lines(tmp_path / "in", *lines), tmp_path / f"out-{is_killed}"
            async with AsyncClient(cluster.address) as client:
                with OutputFiles(out) as files:
                    async with FileJob(InputFiles(path), files, client) as job:
                        count = 0
                        async for _ in job.answers():
                            count += 1
                            if is_killed and count in (20, 60):
                                kill(cluster, Role.DECODE if count == 20 else Role.PREFILL)
            assert (job.tally.completed, job.tally.failed) == (len(lines), 0)
            outputs.append(out.read_bytes())
            await cluster.until_idle(within_s=2)
    assert outputs[0] == outputs[1]


async def test_runs_of_one_prompt_over_a_shared_call_are_siblings(make_cluster: MakeCluster) -> None:
    """Whoever uses `shared` has it; each has a result of its own, usage included."""
    async with make_cluster(slots=8) as cluster, AsyncClient(cluster.address) as client:
        async with client.shared() as calls:
            found: list[GenerationResult] = await asyncio.gather(
                *(calls.generate("one prompt", seed=seed, n=1 + seed % 2, max_tokens=5) for seed in range(4))
            )
        assert (await work(cluster)).prefilled_tokens == len("one prompt")
        for seed, result in enumerate(found):
            assert result == await client.generate("one prompt", seed=seed, n=1 + seed % 2, max_tokens=5)
            assert isinstance(result.usage, Usage)
            assert result.usage.prompt_tokens == len("one prompt")
