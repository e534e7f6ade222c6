"""Engines whose weights are split over two ranks, each a process, on the CPU.

Two ranks cannot show that the order of additions is fixed: a + b is b + a. `test_operators` adds over four.
Ranks wait for each other without sleeping, so engines that work at once share two cores badly, and few
requests are sent here.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from corun_pd.bench.bits import check_company, check_handover
from corun_pd.bench.compare import compare
from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.workloads import mixed_requests
from corun_pd.client import AsyncClient, GenerationRequest, Route, build_request
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, InstanceConfig, RouterConfig
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import EngineFailed
from tests.engine.conftest import engine_config, model_of
from tests.engine.workload import BLOCK, CHUNK, VOCABULARY, make_prompt, send, until_idle

TWO_RANKS = engine_config("packed", tensor_parallel_size=2, kv_cache_bytes=64 << 20)

#: Borders of blocks and of chunks; greedy and drawn, with logprobs.
REQUESTS = mixed_requests(20, CHUNK, BLOCK, VOCABULARY, 300, 10)


#: A model of which one layer's code knows a fused sum, then one whose layers know none.
OWN_SUMS = """
import sys, types
from pathlib import Path
import torch, vllm
from torch import nn
from corun_pd.engine.vllm import collectives

for place in collectives._ON_THEIR_OWN:
    path = Path(vllm.__file__).parent.joinpath(*place.split(".")[1:])
    assert path.exists() or path.with_suffix(".py").exists(), place
code = types.ModuleType("code")
exec("from torch import nn\\ndef fused(): ...\\nclass Layer(nn.Linear): ...", vars(code))
sys.modules["code"] = code
code.Layer.__module__ = "code"
model = nn.Sequential(nn.Linear(1, 1), code.Layer(1, 1))
print(">", collectives.adds_on_its_own(model))
code.fused.__module__ = collectives._ON_THEIR_OWN[3]
print(">", collectives.adds_on_its_own(model))
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, EngineInfo]]:
    """A colocated one, until a test ends it."""
    log = tmp_path_factory.mktemp("ranks") / "log"
    with EngineProcess(model_of("qwen3"), Role.COLOCATED, TWO_RANKS, log) as engine:
        yield engine, engine.ready()


def test_an_answer_is_one_alone_in_a_crowd_and_handed_over(
    engine: tuple[EngineProcess, EngineInfo], tmp_path: Path
) -> None:
    """Tokens and logprobs; and what was moved is what both ranks hold of each prompt."""
    process, info = engine
    settings = info.contract.settings
    assert (settings["tensor_parallel_size"], settings["all_reduce"]) == (2, "fixed-tree-1")
    others = mixed_requests(12, CHUNK, BLOCK, VOCABULARY, 300, 10, seed=11)
    found, batch = check_company(process, REQUESTS, others, alone=8)
    assert [one.same_bits for one in found] == [8, 20, 20]
    assert len({record.token_ids for record in batch.records}) > 15
    apart, moved = check_handover(model_of("qwen3"), TWO_RANKS, REQUESTS, batch.records, tmp_path)
    assert apart.same_bits == len(REQUESTS)
    assert moved == sum(-(-len(request.prompt) // BLOCK) for request in REQUESTS) * info.block_bytes


def test_a_rank_that_ends_ends_its_engine(engine: tuple[EngineProcess, EngineInfo]) -> None:
    """It says what it lost, not what its step ran into. The last test of this engine."""
    process, _ = engine
    children = psutil.Process(process._process.pid).children()
    next(child for child in children if "resource_tracker" not in " ".join(child.cmdline())).kill()
    with pytest.raises(EngineFailed, match="rank's process ended"):
        process.run(Job(REQUESTS), timeout_s=60)


@pytest.mark.exhaustive
def test_standard_engine_adds_as_vllm_does(tmp_path: Path) -> None:
    """The control is vLLM's own."""
    with EngineProcess(model_of("qwen3"), Role.STANDARD, TWO_RANKS, tmp_path / "log") as engine:
        assert engine.ready().contract.settings["all_reduce"] == "vllm"
        assert len(engine.run(Job(REQUESTS)).records) == len(REQUESTS)


def test_layers_that_add_in_kernels_of_their_own_are_named() -> None:
    """Few models have them; where vLLM keeps that code is looked up too."""
    done = subprocess.run([sys.executable, "-c", OWN_SUMS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]
    own = "1 (Layer) adds over ranks in a kernel of its own (vllm.models.common.ops.fused_allreduce_rms_norm)"
    assert found == ["None", own]


def test_heads_that_cannot_be_split_are_named(tmp_path: Path) -> None:
    """Before any rank is started."""
    three = TWO_RANKS.model_copy(update={"tensor_parallel_size": 3})
    with (
        EngineProcess(model_of("qwen3"), Role.COLOCATED, three, tmp_path / "log") as engine,
        pytest.raises(EngineFailed, match=r"heads \(16\) must be divisible by tensor parallel size \(3\)"),
    ):
        engine.ready()


def make_all_kinds() -> list[GenerationRequest]:
    """Samples of one prompt, prompt logprobs, a grammar, and a prompt of one token."""
    long = make_prompt(3 * CHUNK + 1, seed=1)
    asks = build_request(long, {"prompt_logprobs": 2, "logprobs": 3, "seed": 5, "max_tokens": 6})
    bound = build_request(long, {"structured_output": {"regex": "[a-f]{4,8}"}, "seed": 6, "max_tokens": 12})
    short = build_request(make_prompt(1, seed=2), {"logprobs": 1, "seed": 7, "max_tokens": 6})
    return [short, bound, asks, replace(asks, n=3, prompt_logprobs=None)]


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """Of a cluster in which prefill, decode and colocated have two ranks each."""
    config = ClusterConfig(
        model=model_of("qwen3"),
        engine=TWO_RANKS,
        router=RouterConfig(port=0),
        instances=tuple(InstanceConfig(role=r) for r in (Role.PREFILL, Role.DECODE, Role.COLOCATED)),
        log_dir=tmp_path,
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address, timeout_s=300) as client:
        yield client


async def test_what_is_drawn_beside_a_token_comes_from_the_ranks_too(client: AsyncClient) -> None:
    """Siblings' first tokens and prompt logprobs cross a process on their way to the scheduler."""
    requests = make_all_kinds()
    expected = await send(client, requests, Route.COLOCATED)
    found = await send(client, requests, Route.DISAGGREGATED, at_once=2)
    assert not compare("apart", expected, found).differences
    assert len({choice.token_ids for choice in found[-1].choices}) == 3
    assert found[2].prompt is not None
    await until_idle(client, within_s=30)
