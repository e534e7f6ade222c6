"""`corun-pd plan`: what is printed, and what is refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corun_pd.cli.main import cli
from tests.unit.planner.make import make_profile, write


def plan(folder: Path, *arguments: str) -> Result:
    """Runs the command with a profile, four GPUs and four slots."""
    profile = write(folder / "profile.json", make_profile().to_json())
    fixed = ["--profile", str(profile), "--gpus", "4", "--slots", "4"]
    return CliRunner().invoke(cli, ["plan", *fixed, *arguments])


SYNTHETIC = ("--format", "synthetic", "--trace", "50/20", "--requests", "40")
POOL = ("--kv-blocks", "100")


def test_plan_shows_trace_units_table_and_the_best_layout(tmp_path: Path) -> None:
    """In the units in which the trace was read."""
    result = plan(tmp_path, *SYNTHETIC, *POOL)
    assert result.exit_code == 0, result.output
    assert "40 rows, 40 kept, 40 requests; no times" in result.output
    assert "4C        packed 100       4" in result.output
    assert "best: 4 colocated on 4 GPUs, N = 4; start-up of 30 s comes on top" in result.output


def test_json_has_every_plan_with_its_bound(tmp_path: Path) -> None:
    """Best first, never below what is possible."""
    found = json.loads(plan(tmp_path, *SYNTHETIC, *POOL, "--json").output)["plans"]
    assert found[0]["layout"]["colocated"] == 4
    assert found[0]["output_tokens"] == 800
    spans = [row["makespan_s"] for row in found]
    assert spans == sorted(spans)
    assert all(row["least_makespan_s"] <= row["makespan_s"] for row in found)


def test_memory_of_a_model_is_planned_and_shown(tmp_path: Path) -> None:
    """Weights, activations and KV in bytes; or the limit that binds."""
    shape = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 512,
    }
    model = write(tmp_path / "config.json", shape)
    result = plan(tmp_path, *SYNTHETIC, "--model", str(model), "--device-gib", "4")
    assert result.exit_code == 0, result.output
    assert "weights: 295552 bytes" in result.output
    result = plan(tmp_path, *SYNTHETIC, "--model", str(model), "--device-gib", "2")
    assert result.exit_code == 2
    assert "cannot be met because of activations" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SYNTHETIC,), "--kv-blocks, or --model and --device-gib"),
        ((*SYNTHETIC, *POOL, "--load", "closed"), "--load closed: is none of offline"),
        ((*SYNTHETIC, *POOL, "--load", "online"), "no times"),
        ((*SYNTHETIC, *POOL, "--tpot-p95-s", "0"), "a TPOT of 0.0 s is not positive"),
        ((*SYNTHETIC, *POOL, "--ttft-p95-s", "0.5"), "more instances do not help"),
        ((*SYNTHETIC, *POOL, "--objective", "cost"), "--objective cost takes --gpu-hour-price"),
        ((*SYNTHETIC, *POOL, "--mtbf-s", "0"), "the mean must be positive"),
        ((*SYNTHETIC, *POOL, "--gpus", "0"), "one instance takes 1 GPUs, of 0 there"),
        ((*SYNTHETIC, *POOL, "--gpus-per-instance", "9", "--gpus", "8"), "takes 9 GPUs, of 8 there"),
        ((*SYNTHETIC, *POOL, "--slots", "65"), "slots: 65 was not measured"),
        (("--format", "sharegpt", "--trace", "x", *POOL), "--tokenizer or --characters-per-token"),
        (("--format", "synthetic", "--trace", "50-20", "--requests", "4", *POOL), "PROMPT/OUTPUT[@RATE]"),
        (("--format", "azure", "--trace", "missing.csv", *POOL), "missing.csv: No such file"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """With the reason."""
    result = plan(tmp_path, *arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_more_requests_than_the_trace_has_need_a_flag(tmp_path: Path) -> None:
    """Never a silent resample."""
    row = {"timestamp": 0, "input_length": 40, "output_length": 4}
    trace = write(tmp_path / "m.jsonl", row, row)
    arguments = ("--format", "mooncake", "--trace", str(trace), "--requests", "5", *POOL)
    result = plan(tmp_path, *arguments)
    assert result.exit_code == 2
    assert "5 requests asked for and 2 there" in result.stderr
    assert plan(tmp_path, *arguments, "--repeat").exit_code == 0


def test_cheapest_layout_that_meets_targets_comes_with_its_bound(tmp_path: Path) -> None:
    """Two machines: the second is as fast and twice as dear. Cost is GPU hours times the price."""
    dear = write(tmp_path / "dear.json", make_profile(fingerprint="e" * 64).to_json())
    trace = ("--format", "synthetic", "--trace", "50/20@2", "--requests", "60", "--load", "online")
    targets = ("--ttft-p90-s", "6", "--tpot-p99-s", "0.4")
    prices = ("--gpu-hour-price", "2", "--gpu-hour-price", "4")
    arguments = (*trace, *POOL, *targets, "--objective", "cost", *prices, "--profile", str(dear))
    result = plan(tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert "cost    bound makespan" in result.output
    plans = json.loads(plan(tmp_path, *arguments, "--json", "--workers", "2").output)["plans"]
    best = plans[0]
    assert best["fingerprint"] == "f" * 64
    assert best["ttft"]["p90"] <= 6
    assert best["cost"] == pytest.approx(best["makespan_s"] * best["gpus"] * 2 / 3600)
    assert all(0 < one["least_cost"] <= one["cost"] for one in plans)
    assert best["cost"] == min(one["cost"] for one in plans)


def test_failures_of_instances_lengthen_a_plan(tmp_path: Path) -> None:
    """And are counted."""
    arguments = (*SYNTHETIC, *POOL, "--gpus", "1", "--json")
    calm = json.loads(plan(tmp_path, *arguments).output)["plans"][0]
    rough = json.loads(plan(tmp_path, *arguments, "--mtbf-s", "20", "--restart-s", "1").output)["plans"][0]
    assert calm["failures"] == 0
    assert rough["failures"] > 0
    assert rough["makespan_s"] > calm["makespan_s"]
