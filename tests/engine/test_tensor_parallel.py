"""Engines whose weights are split over two ranks, each a process, on the CPU.

Two ranks cannot show that the order of additions is fixed: a + b is b + a. `test_operators` adds over four.
"""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from corun_pd.bench.bits import check_company
from corun_pd.bench.compare import compare
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.workloads import mixed_requests
from corun_pd.client import AsyncClient, GenerationRequest, Route, build_request
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, InstanceConfig, RouterConfig
from corun_pd.core import Role
from corun_pd.errors import EngineFailed
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import CHUNK, SLOTS, grown, make_prompt, make_requests, send, until_idle

pytestmark = pytest.mark.asyncio(loop_scope="module")

TWO_RANKS = engine_config("packed", tensor_parallel_size=2, kv_cache_bytes=64 << 20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncClient]:
    """Of a cluster in which prefill, decode and colocated have two ranks each."""
    config = ClusterConfig(
        model=model_of("qwen3"),
        engine=TWO_RANKS,
        router=RouterConfig(port=0),
        instances=tuple(InstanceConfig(role=r) for r in (Role.PREFILL, Role.DECODE, Role.COLOCATED)),
        log_dir=tmp_path_factory.mktemp("ranks"),
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address, timeout_s=300) as client:
        yield client


def make_all_kinds() -> list[GenerationRequest]:
    """Lengths at every border, several samples, prompt logprobs and a grammar."""
    plain = make_requests(36)
    long = make_prompt(3 * CHUNK + 1, seed=1)
    asks = build_request(long, {"prompt_logprobs": 2, "logprobs": 3, "seed": 5, "max_tokens": 8})
    bound = build_request(long, {"structured_output": {"regex": "[a-f]{4,8}"}, "seed": 6, "max_tokens": 12})
    return [*plain, asks, replace(asks, n=3, prompt_logprobs=None), bound]


async def test_apart_alone_and_reversed_are_one_answer(client: AsyncClient) -> None:
    """Tokens, logprobs, ends and text; each prompt computed once, its KV cache moved from rank to rank."""
    requests = make_all_kinds()
    count = len(requests)
    expected = await send(client, requests, Route.COLOCATED)
    alone = await send(client, requests[::3], Route.COLOCATED, at_once=1)
    assert not compare("alone", expected[::3], alone).differences
    before = await until_idle(client)
    apart = await send(client, requests, Route.DISAGGREGATED, range(count)[::-1])
    after = await until_idle(client)
    assert not compare("apart", expected, apart).differences
    settings = {one.instance.settings["all_reduce"] for one in after.members}
    assert settings == {'"fixed-tree-1"'}
    assert {one.instance.settings["tensor_parallel_size"] for one in after.members} == {"2"}
    assert grown(before, after, Role.PREFILL, "prefilled_tokens") == sum(
        result.usage.prompt_tokens for result in apart
    )
    moved = sum(choice.placement.kv_moved_bytes for result in apart for choice in result.choices)
    assert grown(before, after, Role.DECODE, "kv_pulled_bytes") == moved > 0
    assert all(one.load is not None and one.load.free_blocks == one.instance.blocks for one in after.members)


def test_standard_engine_adds_as_vllm_does_and_a_rank_that_ends_ends_its_engine(tmp_path: Path) -> None:
    """The control keeps vLLM's all-reduce; an engine that lost a rank says so before it is asked for more."""
    engines = {
        role: EngineProcess(model_of("qwen3"), role, TWO_RANKS, tmp_path / f"{role}.log")
        for role in (Role.STANDARD, Role.COLOCATED)
    }
    with engines[Role.STANDARD] as standard, engines[Role.COLOCATED] as ours:
        with ThreadPoolExecutor() as pool:
            found = dict(zip(engines, pool.map(EngineProcess.ready, engines.values()), strict=True))
        requests = mixed_requests(8, CHUNK, 32, found[Role.COLOCATED].vocabulary, 200, 6)
        assert found[Role.STANDARD].contract.settings["all_reduce"] == "vllm"
        assert len(standard.run(Job(requests)).records) == len(requests)
        same, _ = check_company(ours, requests, requests[:SLOTS], alone=4)
        assert [one.same_bits for one in same] == [4, 8, 8]
        children = psutil.Process(ours._process.pid).children()
        next(child for child in children if "spawn_main" in " ".join(child.cmdline())).kill()
        with pytest.raises(EngineFailed, match="rank's process ended"):
            ours.run(Job(requests), timeout_s=60)
