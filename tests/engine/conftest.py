"""Real engines on the CPU. One takes about 25 s to start, so a session shares one cluster.

The model is `qwen3-wide`: narrower ones give every shape the same bits on this kind of CPU, and a test of
determinism on them could not fail.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from corun_pd.client import AsyncClient
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import ClusterConfig, EngineConfig, InstanceConfig, PrefillConfig, RouterConfig
from corun_pd.core import Role
from tests.engine.workload import BLOCK, CHUNK, SLOTS

ROOT = Path(__file__).parents[2]

#: What the router takes for what a request leaves unset.
DEFAULTS = {"temperature": 0.9, "top_p": 0.95, "top_k": 300}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is slow, shares a loop with the cluster, and may wait for engines to start."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(600))


def model_of(family: str) -> Path:
    """The family's model folder, made when it is missing."""
    folder = ROOT / "models" / {"qwen3": "qwen3-wide"}.get(family, family)
    if not folder.exists():
        tool = ROOT / "tools" / "make_model.py"
        subprocess.run([sys.executable, tool, folder, "--family", family], check=True)
    return folder


def engine_config(mode: str = "isolated", **changes: object) -> EngineConfig:
    """The engine of these tests. T of `packed` is wider than C, so that several prompts share a step."""
    chunk = {"isolated": CHUNK, "packed": 4 * CHUNK}[mode]
    config = EngineConfig(
        slots=SLOTS,
        prefill=PrefillConfig.model_validate({"mode": mode, "chunk_tokens": chunk}),
        max_model_tokens=4608,
        block_tokens=BLOCK,
        kv_cache_bytes=256 << 20,
    )
    return EngineConfig.model_validate({**config.model_dump(), **changes})


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen3-wide with a generation config whose defaults are none of the usual ones (C19)."""
    folder = tmp_path_factory.mktemp("model") / "qwen3-wide"
    folder.mkdir()
    for file in model_of("qwen3").iterdir():
        (folder / file.name).symlink_to(file)
    generation = folder / "generation_config.json"
    values = json.loads(generation.read_text())
    generation.unlink()
    generation.write_text(json.dumps({**values, "do_sample": True, **DEFAULTS}))
    return folder


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    """The model's."""
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Prefill, decode and colocated instances of one contract behind a router, each a process."""
    config = ClusterConfig(
        model=model,
        engine=engine_config(),
        router=RouterConfig(port=0),
        instances=tuple(InstanceConfig(role=r) for r in (Role.PREFILL, Role.DECODE, Role.COLOCATED)),
        log_dir=tmp_path_factory.mktemp("cluster"),
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    """A client of the cluster."""
    async with AsyncClient(cluster.router_address, timeout_s=300) as client:
        yield client
