"""Samples of one prompt on real engines: computed once, handed over and decoded many times."""

from dataclasses import replace
from pathlib import Path

import pytest

from corun_pd.bench.compare import compare
from corun_pd.client import AsyncClient, GenerationRequest, GenerationResult, Route, Usage
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, InstanceConfig, RouterConfig
from corun_pd.core import Role
from tests.engine.conftest import engine_config
from tests.engine.workload import grown, member, send, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIZE = 4

#: A block border, a chunk border and one token more, and several chunks; every kind of draw.
GROUPS = [
    GenerationRequest(
        prompt=tuple((31 * at + 7 * length) % 700 for at in range(length)),
        seed=1000 * length,
        n=SIZE,
        max_tokens=12,
        logprobs=3,
        **options,
    )
    for length, options in (
        (32, {"temperature": 1.3, "ignore_eos": True}),
        (64, {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2}),
        (65, {"temperature": 1.5, "min_p": 0.01, "min_tokens": 3, "prompt_logprobs": 2}),
        (200, {"temperature": 1.0, "logit_bias": {5: 3.0, 6: 3.0}, "stop_token_ids": (5,)}),
    )
]


def separate(group: GenerationRequest) -> list[GenerationRequest]:
    """A request for each sample."""
    assert group.seed is not None
    return [replace(group, n=1, seed=group.seed + at) for at in range(SIZE)]


def sample(result: GenerationResult, at: int) -> GenerationResult:
    """Sample `at` of a group, as a request of its own would give it."""
    choice = replace(result.choices[at], index=0)
    usage = Usage(result.usage.prompt_tokens, len(choice.token_ids))
    return replace(result, choices=(choice,), usage=usage, seed=choice.seed)


async def test_groups_prefill_once_and_equal_separate_requests_in_every_bit(client: AsyncClient) -> None:
    """4 groups of 4 samples against 16 requests, apart and colocated (C11)."""
    alone = [request for group in GROUPS for request in separate(group)]
    expected = await send(client, alone, Route.COLOCATED)
    before = await until_idle(client)
    groups = await send(client, GROUPS, Route.DISAGGREGATED)
    after = await until_idle(client)
    found = [sample(group, at) for group in groups for at in range(SIZE)]
    assert not compare("groups", expected, found).differences
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == 32 + 64 + 65 + 200
    assert grown(before, after, Role.PREFILL, "sampled_tokens") == len(GROUPS) * SIZE
    assert grown(before, after, Role.DECODE, "prefilled_tokens") == 0
    for role in (Role.PREFILL, Role.DECODE):
        node = member(after, role)
        assert node.load is not None
        assert node.load.free_blocks == node.instance.blocks
        assert node.load.open_handoffs == 0
    # The control: samples of a group differ, so equal ones would have been seen.
    assert all(len({choice.token_ids for choice in group.choices}) > 1 for group in groups)
    apart = await send(client, alone, Route.DISAGGREGATED, at_once=3)
    assert not compare("apart", expected, apart).differences


async def test_groups_that_end_at_prefill_leave_no_block_behind(client: AsyncClient) -> None:
    """One token each; and a stop token that ends some samples there while others go on."""
    before = await until_idle(client)
    (one,) = await send(client, [replace(GROUPS[0], max_tokens=1)], Route.DISAGGREGATED)
    first = one.choices[0].token_ids[0]
    mixed = replace(GROUPS[0], stop_token_ids=(first,))
    (found,) = await send(client, [mixed], Route.DISAGGREGATED)
    after = await until_idle(client)
    lengths = [len(choice.token_ids) for choice in found.choices]
    assert lengths[0] == 1
    assert max(lengths) > 1
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == 64
    (whole,) = await send(client, [mixed], Route.COLOCATED)
    assert not compare("ends", [whole], [found]).differences


async def test_groups_share_packed_steps_and_equal_separate_requests_in_every_bit(
    model: Path, tmp_path: Path
) -> None:
    """Prompts of several groups in one step of T tokens, each drawn from as often as its group is large."""
    config = ClusterConfig(
        model=model,
        engine=engine_config("packed"),
        router=RouterConfig(port=0),
        instances=tuple(InstanceConfig(role=role) for role in (Role.PREFILL, Role.DECODE)),
        log_dir=tmp_path,
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address, timeout_s=300) as client:
        alone = [request for group in GROUPS for request in separate(group)]
        expected = await send(client, alone, Route.DISAGGREGATED, at_once=3)
        before = await until_idle(client)
        groups = await send(client, GROUPS, Route.DISAGGREGATED)
        after = await until_idle(client)
        assert grown(before, after, Role.PREFILL, "prefilled_tokens") == 32 + 64 + 65 + 200
        assert grown(before, after, Role.PREFILL, "sampled_tokens") == len(GROUPS) * SIZE
        # Four prompts of 361 tokens in all: two steps of 256, or three when the first one was early.
        assert grown(before, after, Role.PREFILL, "steps") < len(GROUPS)
        found = [sample(group, at) for group in groups for at in range(SIZE)]
        assert not compare("packed groups", expected, found).differences
        assert all(len({choice.token_ids for choice in group.choices}) > 1 for group in groups)
        async with client.shared() as calls:  # as a job sends them: requests of their own, one prompt
            shared = await send(calls, alone, Route.DISAGGREGATED)
        last = await until_idle(client)
        assert not compare("one message", expected, shared).differences
        assert grown(after, last, Role.PREFILL, "prefilled_tokens") < sum(
            len(request.prompt or ()) for request in alone
        )
