"""`corun-pd bench` on fake engines: every experiment in real processes, through to its table and JSON."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from corun_pd.bench.experiments import EXPERIMENTS
from corun_pd.cli.bench_options import devices
from corun_pd.cli.layouts import counts_of
from corun_pd.cli.main import cli
from corun_pd.core import Role
from corun_pd.errors import ConfigError

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[3]
ENGINE = ("--fake", "--shape", "qwen3-8b", "--slots", "8", "--chunk", "64", "--max-model-tokens", "512")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return found


def test_all_experiments_on_two_modes_give_rows_of_the_same_fields(tmp_path: Path) -> None:
    """A result a name, a figure beside it, and modes with equal work."""
    result = bench(
        "all",
        *(*ENGINE, "--modes", "standard,packed", "--experiments", ",".join(EXPERIMENTS)),
        *("--workloads", "64/8:6,burstgpt:4", "--workload", "64/8", "--requests", "6", "--in-flight", "1,4"),
        *("--kv-tokens", "32", "--rates", "200", "--bits", "8", "--label", "x", "--plot"),
        *("--out-dir", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    for experiment in EXPERIMENTS:
        found = rows(tmp_path / f"{experiment}-x.json")
        standard, packed = ([row for row in found if row["mode"] == mode] for mode in ("standard", "packed"))
        assert len(standard) == len(packed) > 0
        for one, other in zip(standard, packed, strict=True):
            assert one.keys() == other.keys()
            assert one["workload"] == other["workload"]
            assert one.get("output_tokens") == other.get("output_tokens")
        assert (tmp_path / f"{experiment}-x.svg").exists()
    ablation = rows(tmp_path / "ablation-x.json")
    assert {row["mode"]: row["reversed_same_bits"] for row in ablation}["packed"] == 8


def test_several_widths_are_a_row_each(tmp_path: Path) -> None:
    """One request alone pads more the wider the step is."""
    out = tmp_path / "padding.json"
    result = bench(
        *(
            "padding",
            *ENGINE,
            "--modes",
            "isolated",
            "--sizes",
            "4,8",
            "--workloads",
            "32/4:4",
            "--out",
            str(out),
        )
    )
    assert result.exit_code == 0, result.output
    alone = [row for row in rows(out) if row["workload"].startswith("one request")]
    assert [(row["slots"], row["decode_padding_ratio"]) for row in alone] == [(4, 0.75), (8, 0.875)]


def test_determinism_passes_under_the_contract_and_sees_standard_differ(tmp_path: Path) -> None:
    """The fake engine's standard mode draws by company: the check that passes can fail."""
    out = tmp_path / "bits.json"
    result = bench(
        *("determinism", *ENGINE, "--modes", "standard,packed", "--requests", "24", "--others", "8"),
        *("--alone", "4", "--output", "4", "--longest", "200", "--out", str(out)),
    )
    assert result.exit_code == 0, result.output
    found = {(row["mode"], row["run"]): (row["same_bits"], row["requests"]) for row in rows(out)}
    packed = {run: found["packed", run] for run in ("reversed", "crowd", "p/d", "restart")}
    assert packed == dict.fromkeys(packed, (24, 24))
    assert found["packed", "alone"] == (4, 4)
    assert found["standard", "crowd"][0] < 24
    assert found["standard", "alone"][0] < 4


def test_determinism_without_time_names_the_runs_that_it_left_out(tmp_path: Path) -> None:
    """What was not checked is not passed over."""
    out = tmp_path / "bits.json"
    arguments = ("--modes", "packed", "--requests", "8", "--output", "4", "--longest", "100", "--budget", "0")
    result = bench("determinism", *ENGINE, *arguments, "--out", str(out))
    assert result.exit_code == 3, result.output
    assert [row["error"].partition(":")[0] for row in rows(out)] == [
        "alone",
        "reversed",
        "crowd",
        "p/d",
        "restart",
    ]


def test_transfers_say_what_moved_and_results_can_be_shown_again(tmp_path: Path) -> None:
    """Twice the prompt is twice the bytes."""
    out = tmp_path / "transfer.json"
    result = bench(
        "transfer", *ENGINE, "--max-model-tokens", "1024", "--lengths", "64,128", "--out", str(out)
    )
    assert result.exit_code == 0, result.output
    first, second = rows(out)
    assert 0 < 2 * first["kv_bytes"] == second["kv_bytes"]
    assert first["beside_rows"] == 4
    shown = bench("show", "--short", str(out)).output.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [["packed", "64"], ["packed", "128"]]
    assert "GB/s" in bench("show", str(out)).output


def test_a_fleet_is_measured_behind_its_router_on_gpus_of_its_own(tmp_path: Path) -> None:
    """Prefill and decode apart: all tokens come, KV caches move, and each instance has its GPU."""
    out = tmp_path / "fleet.json"
    result = bench(
        *("fleet", *ENGINE, "--layouts", "1P+1D", "--gpus", "0,1", "--workloads", "64/8:6,32/4:4"),
        *("--out", str(out)),
    )
    assert result.exit_code == 0, result.output
    found = rows(out)
    assert [(row["mode"], row["layout"], row["workload"], row["output_tokens"]) for row in found] == [
        ("packed", "1P+1D", "64/8", 48),
        ("packed", "1P+1D", "32/4", 16),
    ]
    assert all(row["kv_moved_bytes"] > 0 and row["output_tokens_per_s"] > 0 for row in found)
    cluster = yaml.safe_load((tmp_path / "fleet" / "packed-1P+1D" / "cluster.yaml").read_text())
    assert [(one["role"], one["gpus"]) for one in cluster["instances"]] == [("prefill", [0]), ("decode", [1])]
    assert "output tokens/s" in bench("show", str(out)).output


def test_layouts_are_roles_and_counts() -> None:
    """In the order in which GPUs are dealt out."""
    assert list(counts_of("2P+1D").items()) == [(Role.PREFILL, 2), (Role.DECODE, 1)]
    assert counts_of("2S") == {Role.STANDARD: 2}
    for text in ("", "P", "0C", "1C+1C", "1P1D"):
        with pytest.raises(ConfigError, match=f"--layouts {re.escape(text)}: is not as 2C"):
            counts_of(text)


@pytest.mark.parametrize(
    ("tensor_parallel", "gpus", "pairs"),
    [
        (1, "0,1", ["0", "1"]),
        (2, "0,1", ["0,1", "0,1"]),
        (2, "0,1,2,3", ["0,1", "2,3"]),
        (1, None, [None] * 2),
    ],
)
def test_engines_of_an_experiment_take_their_gpus_in_turn(
    tensor_parallel: int, gpus: str | None, pairs: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair on two GPUs has one each, and shares them when each needs both."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = devices({"gpus": gpus, "tensor_parallel": tensor_parallel}, 2)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in found] == pairs


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        ("latency", ("--slots", "0"), "slots"),
        ("latency", ("--modes", "fast"), "'fast'"),
        ("latency", ("--rates", "0"), "--rates"),
        ("concurrency", ("--in-flight", "0"), "--in-flight"),
        ("decode-step", ("--kv-tokens", "x"), "--kv-tokens"),
        ("padding", ("--workloads", "8/8", "--sizes", "4,0"), "--sizes"),
        ("throughput", ("--workloads", "4096/128"), "4096/128"),
        ("transfer", ("--lengths", "600"), "600"),
        ("transfer", ("--gpus", "0,x"), "--gpus 0,x"),
        ("determinism", ("--gpus", "0", "--tensor-parallel", "2"), "two ranks of one engine"),
        ("fleet", ("--layouts", "1X"), "--layouts 1X"),
    ],
)
def test_a_wrong_option_is_named_before_an_engine_starts(
    tmp_path: Path, command: str, option: tuple[str, str], message: str
) -> None:
    """Exit code 2, one line, no result."""
    out = tmp_path / "none.json"
    result = bench(command, *ENGINE, *option, "--out", str(out))
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert message in result.output
    assert not out.exists()


def test_the_stages_for_a_gpu_run_one_after_the_other(tmp_path: Path) -> None:
    """On fake engines: results, logs and the table; an unknown stage starts nothing."""
    script = ROOT / "bench" / "h200.sh"
    environment = {"FAKE": "1", "SCALE": "0.01", "OUT": str(tmp_path / "out"), "PYTHON": sys.executable}
    paths = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    unknown = subprocess.run(
        [script, "d2s", "nothing"], env=environment | paths, capture_output=True, text=True
    )
    assert (unknown.returncode, "no stage nothing" in unknown.stderr) == (2, True)
    assert not list((tmp_path / "out").glob("*"))
    done = subprocess.run([script, "xfer2", "sizes"], env=environment | paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = ("transfer-2-gpus-qwen3-8b-h200", "padding-sizes-qwen3-8b-12-layers-h200")
    assert all((tmp_path / "out" / f"{name}.json").exists() for name in names)
    assert done.stdout.count("exit   0") == 2
