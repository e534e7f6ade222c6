"""Samples of one prompt: computed once, decoded many times, and what a request for each alone gives."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from corun_pd.core import Role, SamplingParams
from corun_pd.engine.base import LegOutput, LegWork
from corun_pd.errors import Unavailable
from corun_pd.router.pipeline import Sample
from corun_pd.router.siblings import Siblings, Start
from corun_pd.v1 import router_pb2, sampling_pb2
from tests.integration.conftest import Cluster, MakeCluster
from tests.integration.router.test_handoff import APART, prompt, sampling

GROUPS, SIZE = 64, 8


async def prefilled(cluster: Cluster) -> int:
    """Prompt tokens that prefill instances have computed."""
    loads = await cluster.loads()
    return sum(load.prefilled_tokens for load in loads)


def rows(response: router_pb2.GenerateResponse) -> list[Any]:
    """Each sample, less its index and its place."""
    return [
        (c.text, list(c.token_ids), c.logprobs, c.finish_reason, c.stop_string, c.stop_token_id, c.seed)
        for c in response.choices
    ]


async def apart_from_each_other(cluster: Cluster, seeds: list[int], **fields: Any) -> list[Any]:
    """One request for each seed; their samples."""
    params = fields.pop("sampling")
    answers = await asyncio.gather(
        *(cluster.generate(sampling=_with_seed(params, seed), **fields) for seed in seeds)
    )
    return [row for answer in answers for row in rows(answer)]


def _with_seed(params: sampling_pb2.SamplingParams, seed: int) -> sampling_pb2.SamplingParams:
    copy = sampling_pb2.SamplingParams()
    copy.CopyFrom(params)
    copy.seed = seed
    return copy


async def test_groups_prefill_once_and_equal_separate_requests(make_cluster: MakeCluster) -> None:
    """64 groups of 8 samples: the prompt tokens of 64 prompts, the answers of 512 requests (C11)."""
    prompts = [prompt(20 + 3 * at) for at in range(GROUPS)]
    options = [sampling(seed=100 * at, logprob_count=2, ignore_eos=at % 2 == 0) for at in range(GROUPS)]
    async with make_cluster(prefill=2, decode=2, slots=16) as cluster:
        groups = await asyncio.gather(
            *(
                cluster.generate(token_ids=ids, sampling=params, sample_count=SIZE, timeout=60)
                for ids, params in zip(prompts, options, strict=True)
            )
        )
        assert await prefilled(cluster) == sum(len(ids.ids) for ids in prompts)
        await cluster.until_idle(within_s=2)
        for ids, params, group in zip(prompts, options, groups, strict=True):
            seeds = [params.seed + at for at in range(SIZE)]
            assert rows(group) == await apart_from_each_other(cluster, seeds, token_ids=ids, sampling=params)
            assert [choice.index for choice in group.choices] == list(range(SIZE))
            assert group.usage.prompt_token_count == len(ids.ids)
        assert len({row[0] for row in rows(groups[0])}) > 1  # the control: samples are not one sample
        await cluster.until_idle(within_s=2)


async def test_seeds_may_be_given_one_by_one(make_cluster: MakeCluster) -> None:
    """Each choice tells its own; the prompt is computed once all the same."""
    seeds = [9, 4, 4, 1 << 62]
    params = sampling_pb2.SamplingParams(max_tokens=6, ignore_eos=True)
    async with make_cluster() as cluster:
        group = await cluster.generate(token_ids=prompt(40), sampling=params, seeds=seeds)
        assert await prefilled(cluster) == 40
        assert [choice.seed for choice in group.choices] == seeds
        assert rows(group)[1] == rows(group)[2]
        assert rows(group) == await apart_from_each_other(
            cluster, seeds, token_ids=prompt(40), sampling=params
        )


async def test_streamed_samples_share_their_prompt(make_cluster: MakeCluster) -> None:
    """As those that come whole do; stop strings end each on its own."""
    fields = {"token_ids": prompt(33), "sampling": sampling(max_tokens=12), "sample_count": 5}
    async with make_cluster(slots=8) as cluster:
        whole = await cluster.generate(**fields)
        before = await prefilled(cluster)
        messages = await cluster.stream(**fields)
        assert await prefilled(cluster) - before == 33
        texts = [""] * 5
        for delta in (delta for message in messages for delta in message.deltas):
            texts[delta.index] += delta.text
        assert texts == [choice.text for choice in whole.choices]


async def test_samples_that_end_with_their_first_token_take_no_blocks_along(
    make_cluster: MakeCluster,
) -> None:
    """Some of a group end at prefill, others go on; all of one with max_tokens 1 do (C11)."""
    async with make_cluster(slots=8) as cluster:
        one = await cluster.generate(token_ids=prompt(50), sampling=sampling(max_tokens=1), sample_count=8)
        firsts = [choice.token_ids[0] for choice in one.choices]
        assert await prefilled(cluster) == 50
        assert all(not choice.placement.decode_instance_id for choice in one.choices)
        stops = sampling(stop_token_ids=[firsts[0], firsts[3]])
        mixed = await cluster.generate(token_ids=prompt(50), sampling=stops, sample_count=8)
        lengths = [len(choice.token_ids) for choice in mixed.choices]
        assert lengths[0] == lengths[3] == 1
        assert max(lengths) > 1
        seeds = [7 + at for at in range(8)]
        assert rows(mixed) == await apart_from_each_other(
            cluster, seeds, token_ids=prompt(50), sampling=stops
        )
        await cluster.until_idle(within_s=2)


async def test_more_samples_than_the_fleet_holds_come_in_parts(make_cluster: MakeCluster) -> None:
    """40 samples on 4 slots: none is lost and nothing hangs; each part computes the prompt once."""
    async with make_cluster(slots=4, colocated=1) as cluster:
        fields = {"token_ids": prompt(40), "sampling": sampling(), "sample_count": 40}
        apart = await cluster.generate(**fields, route=APART)
        assert await prefilled(cluster) == 40 * 40 // 4
        whole = await cluster.generate(**fields, route=router_pb2.ROUTE_COLOCATED)
        assert rows(apart) == rows(whole)
        await cluster.until_idle(within_s=2)


async def test_prompt_logprobs_come_once_for_all_samples(make_cluster: MakeCluster) -> None:
    """They are the prompt's."""
    params = sampling(prompt_logprob_count=2)
    async with make_cluster() as cluster:
        group = await cluster.generate(token_ids=prompt(12), sampling=params, sample_count=3)
        alone = await cluster.generate(token_ids=prompt(12), sampling=params)
        assert group.prompt == alone.prompt
        assert len(group.prompt.logprobs.sampled) == 11


@pytest.mark.parametrize("cancel_after", [0.0, 0.01, 0.03, 0.06, 0.1])
async def test_cancelled_groups_leave_no_block_behind(make_cluster: MakeCluster, cancel_after: float) -> None:
    """While they queue, prefill, are handed over, are pulled and decode (C11, C21)."""
    slow = {"prefill_s_per_token": 0.0003, "transfer_s": 0.02, "decode_step_s": 0.005}
    async with make_cluster(slots=4, **slow) as cluster:
        fields = {"token_ids": prompt(100), "sampling": sampling(max_tokens=400), "sample_count": 4}
        calls = [asyncio.create_task(cluster.generate(**fields)) for _ in range(3)]
        await asyncio.sleep(cancel_after)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await cluster.until_idle(within_s=2)
        assert not cluster.router.service.running


async def test_failure_of_one_sample_fails_the_generation_and_frees_all(make_cluster: MakeCluster) -> None:
    """A sibling that fails at decode ends the others, whose tickets and rooms come back."""
    async with make_cluster(slots=8) as cluster:
        engine = cluster.node(Role.DECODE).engine
        engine.faults.fail_leg = lambda work: work.sampling.seed == 9
        with pytest.raises(Exception, match="told to fail"):
            await cluster.generate(token_ids=prompt(20), sampling=sampling(), sample_count=4)
        await cluster.until_idle(within_s=2)


async def test_prefill_instance_that_forgets_siblings_fails_the_generation(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are never short without a word."""
    async with make_cluster(router={"max_replays": 0}) as cluster:
        engine = cluster.node(Role.PREFILL).engine
        submit = engine.submit

        def forget(work: LegWork) -> None:
            submit(replace(work, sibling_seeds=work.sibling_seeds[:-1]))

        monkeypatch.setattr(engine, "submit", forget)
        with pytest.raises(Exception, match="3 samples of 4"):
            await cluster.generate(token_ids=prompt(20), sampling=sampling(), sample_count=4)
        await cluster.until_idle(within_s=2)


def test_an_output_tells_all_its_handoffs() -> None:
    """Whoever drops an output releases each of them."""
    assert LegOutput("a", siblings=(LegOutput("a"), LegOutput("a"))).handoffs == []


async def test_a_sample_that_fails_leaves_the_prompt_to_the_next(make_cluster: MakeCluster) -> None:
    """So each may be tried again on its own; one that was cancelled is passed over."""
    async with make_cluster(slots=8) as cluster:
        admission, member = cluster.router.service._admission, cluster.router.fleet.members[0]
        samples = [
            Sample("g", at, list(range(20)), SamplingParams(4, at, ignore_eos=True), None, False)
            for at in range(4)
        ]
        siblings = Siblings(admission, samples, lambda *args, **facts: None)
        prefill = member.prefill.prefill
        faults = iter([Unavailable("lost")])

        async def failing(*args: Any, **kwargs: Any) -> Any:
            for fault in faults:
                raise fault
            return await prefill(*args, **kwargs)

        member.session.prefill = failing
        tasks = [asyncio.create_task(siblings.start(at)) for at in range(4)]
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], Unavailable)
        assert isinstance(results[1], asyncio.CancelledError)
        assert await prefilled(cluster) == 20
        for start in results[2:]:
            assert isinstance(start, Start)
            start.close()
        for at in range(4):
            siblings.leave(at)
        await cluster.until_idle(within_s=2)
