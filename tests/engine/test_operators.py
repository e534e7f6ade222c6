"""Kernels of a tiny model on this machine's CPU, in a process of their own for vLLM's environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

QWEN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}

BROKEN = """
import sys
from pathlib import Path
from corun_pd.config import EngineConfig, PrefillConfig
from corun_pd.engine.vllm import environment
config = EngineConfig(slots=4, prefill=PrefillConfig(mode="packed", chunk_tokens=16))
environment.prepare(config, "127.0.0.1")
import torch
from corun_pd.engine.vllm.operators import dense, require_operators
from corun_pd.errors import SetupError
require_operators(Path(sys.argv[1]), config)
sound = dense._linear
def by_row(scene, weight):
    run = sound(scene, weight)
    return lambda x: run(x) + torch.arange(len(x), dtype=x.dtype)[:, None]
dense._linear = by_row
try:
    require_operators(Path(sys.argv[1]), config)
except SetupError as error:
    print(error.message)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return tmp_path


@pytest.mark.parametrize("mode", ["isolated", "packed"])
def test_verify_finds_no_fault_and_controls_that_fail(model: Path, mode: str) -> None:
    out = model / "operators.json"
    options = ["--mode", mode, "--slots", "4", "--chunk-tokens", "16", "--block-tokens", "32"]
    command = [sys.executable, "-m", "corun_pd.cli.main", "verify", "--operators", "--model", str(model)]
    done = subprocess.run(
        [*command, *options, "--timed", "1,N", "--json", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["experiment"] == "operators"
    needed = [row for row in result["rows"] if row["need"]]
    assert needed
    assert all(row["position_shapes"] and not row["position_differs"] for row in needed)
    assert all(set(row["latency_s"]) == {"1", "4"} for row in needed if row["operator"].startswith("log"))
    assert len(result["controls"]) == 2
    assert all(row["position_differs"] == [4] for row in result["controls"])


def test_kernel_that_depends_on_its_row_is_named_and_stops_the_start(model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN, str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("engine.check_operators: ")
    assert "not position-invariant at 4 rows" in done.stdout


def test_verify_needs_one_of_model_and_shape() -> None:
    from corun_pd.cli.main import cli

    result = CliRunner().invoke(cli, ["verify", "--operators"])
    assert result.exit_code == 2
    assert "give one of --model and --shape" in result.output
