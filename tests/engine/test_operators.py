"""Kernels on this machine's CPU, in processes of their own: vLLM reads its environment on import."""

import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from corun_pd.cli.main import cli
from tests.engine.conftest import model_of

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}

#: `corun-pd verify --operators` by mode, then with a matrix product that adds its row number.
VERIFY = """
import sys
from click.testing import CliRunner
from corun_pd.cli.main import cli

def verify(mode, name, *more):
    shapes = ["--slots", "4", "--chunk-tokens", "16", "--block-tokens", "32", "--timed", "1,N", *more]
    files = ["--model", sys.argv[1], "--json", f"{sys.argv[1]}/{name}.json"]
    result = CliRunner().invoke(cli, ["verify", "--operators", "--mode", mode, *shapes, *files])
    print(">", name, result.exit_code, flush=True)
    print(result.output, file=sys.stderr, flush=True)

verify("isolated", "isolated")
from corun_pd.engine.vllm import environment
environment.prepare = lambda config, host: None  # It refuses a process that has vLLM already.
verify("packed", "packed")
verify("hybrid", "hybrid")
verify("packed", "ranks", "--tensor-parallel", "4")

import torch
from corun_pd.engine.vllm.operators import check, dense
linear = dense._linear
def by_row(scene, weight):
    run = linear(scene, weight)
    return lambda x: run(x) + torch.arange(len(x), dtype=x.dtype)[:, None]
dense._linear = by_row
verify("packed", "broken")
dense._linear = linear
check.control_probes = lambda scene: [next(check.dense_probes(scene))()[0]]
verify("packed", "unproven")
"""

#: An engine that is asked to check its kernels: first with that matrix product, then as it is.
START = """
import asyncio, os, sys
from pathlib import Path
from corun_pd.config import EngineConfig, PrefillConfig
from corun_pd.core import Role
from corun_pd.engine.vllm import environment
from corun_pd.engine.vllm.engine import VllmEngine
from corun_pd.errors import SetupError

config = EngineConfig(prefill=PrefillConfig(chunk_tokens=64), max_model_tokens=256, kv_cache_bytes=1 << 26)
checked = config.model_copy(update={"check_operators": True})
environment.prepare(config, "127.0.0.1")
environment.prepare = lambda config, host: None  # It refuses a process that has vLLM already.
import torch
from corun_pd.engine.vllm.operators import dense
linear = dense._linear
def by_row(scene, weight):
    run = linear(scene, weight)
    return lambda x: run(x) + torch.arange(len(x), dtype=x.dtype)[:, None]

def start(config):
    try:
        info = asyncio.run(VllmEngine(Path(sys.argv[1]), Role.COLOCATED, config, "127.0.0.1").start())
        print("> started", info.contract.fingerprint, flush=True)
    except SetupError as error:
        print("> refused", error, flush=True)

dense._linear = by_row
start(checked)
dense._linear = linear
start(checked if sys.argv[2] == "checked" else config)
os._exit(0)
"""


def run(script: str, *arguments: str) -> list[str]:
    """The lines that the script marks as its own; vLLM writes others."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stderr[-8000:])
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, Any]]:
    """Exit codes and results by name."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    codes = dict(line.split() for line in run(VERIFY, str(folder)))
    files = (folder / f"{name}.json" for name in codes)
    return codes, {file.stem: json.loads(file.read_text()) for file in files if file.exists()}


@pytest.mark.parametrize("mode", ["isolated", "packed"])
def test_kernels_that_the_contract_uses_hold_and_the_controls_do_not(verified: Any, mode: str) -> None:
    """Every needed kernel was tried at a shape, and both controls were seen to fail there."""
    codes, results = verified
    assert codes[mode] == "0"
    needed = [row for row in results[mode]["rows"] if row["need"]]
    assert {"RMSNorm", "matmul qkv", "log-softmax", "attention, decode"} <= {
        row["operator"] for row in needed
    }
    assert ("attention, prefill" in {row["operator"] for row in needed}) == (mode == "packed")
    assert all(row["position_shapes"] and not row["position_differs"] for row in needed)
    assert all(row["error"] is None for row in results[mode]["rows"])
    assert [row["position_differs"] for row in results[mode]["controls"]] == [[4], [4]]


def test_result_is_that_of_an_experiment(verified: Any) -> None:
    """`bench show` and `make tables` read it."""
    result = verified[1]["packed"]
    assert result["experiment"] == "operators"
    assert {"date", "command", "machine", "settings"} <= set(result)
    times = {row["operator"]: set(row["latency_s"]) for row in result["rows"]}
    assert times["matmul qkv"] == {"1", "4"}


def test_ranks_add_in_a_fixed_tree_and_a_ring_is_seen_to_fail(verified: Any) -> None:
    """Over four ranks: with two, a ring has no order to add in that could differ."""
    codes, results = verified
    assert codes["ranks"] == "0"
    sums = {row["kernel"]: row for row in results["ranks"]["rows"] if row["operator"] == "all-reduce"}
    ours = sums["fixed tree"]
    assert (ours["need"], ours["position_shapes"], ours["position_differs"]) == ("position", [4, 16], [])
    assert (ours["batch_sizes"][-1], ours["batch_differs"], ours["error"]) == (16, [], None)
    assert (sums["gloo"]["need"], sums["gloo"]["error"]) == ("", None)
    ring = results["ranks"]["controls"][-1]
    assert (ring["kernel"], ring["position_differs"]) == ("ring all-reduce", [4, 16])
    assert not [row for row in results["packed"]["rows"] if row["operator"] == "all-reduce"]


def test_kernel_that_looks_at_its_place_fails_the_check(verified: Any) -> None:
    """It is a fault at every shape of the mode, and of the matrix products alone."""
    codes, results = verified
    assert codes["broken"] == "1"
    failed = {row["operator"] for row in results["broken"]["rows"] if row["need"] and row["position_differs"]}
    assert failed == {f"matmul {name}" for name in ("qkv", "o", "gate_up", "down", "lm_head")}


def test_check_whose_control_passes_proves_nothing(verified: Any) -> None:
    """With a sound kernel in the place of a control, the exit code is not 0."""
    assert verified[0]["unproven"] == "3"


def test_hybrid_is_refused_where_its_kernels_are_missing(verified: Any) -> None:
    """Nothing to check is not a check that was passed."""
    assert verified[0]["hybrid"] == "2"
    assert "hybrid" not in verified[1]


def test_engine_starts_on_kernels_that_hold_and_on_no_others() -> None:
    """The check is part of no contract: with it and without it the fingerprint is the same."""
    refused, started = run(START, str(model_of("qwen3")), "checked")
    assert refused.startswith("refused engine.check_operators: matmul qkv")
    assert "is not position-invariant at 8 rows" in refused
    assert started.startswith("started ")
    assert run(START, str(model_of("qwen3")), "unchecked")[-1] == started


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give one of --model and --shape"),
        (["--shape", "qwen3-8b", "--router", "127.0.0.1:1"], "not --router or --config"),
    ],
)
def test_verify_of_operators_is_of_one_model(options: list[str], says: str) -> None:
    """A cluster's check and the kernels' are two."""
    result = CliRunner().invoke(cli, ["verify", "--operators", *options])
    assert result.exit_code == 2
    assert says in result.output
