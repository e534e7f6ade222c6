"""`corun-pd bench planner` on a cluster of fake engines: real processes, in real time."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from corun_pd.cli.main import cli
from corun_pd.planner.accuracy import METRICS, Comparison, Figures, Summary

pytestmark = pytest.mark.timeout(120)


def make_comparison(measured: float, predicted: float) -> Comparison:
    """One with the same figure everywhere."""
    figures = [Figures(dict.fromkeys(METRICS, value)) for value in (measured, predicted)]
    return Comparison("short", "1 colocated", "fake", *figures)


def test_an_error_is_a_share_of_the_measurement() -> None:
    """Median and worst do not tell too long from too short."""
    rows = [make_comparison(2.0, 1.8), make_comparison(2.0, 2.6), make_comparison(2.0, 2.0)]
    assert [row.error("makespan") for row in rows] == pytest.approx([-0.1, 0.3, 0.0])
    assert make_comparison(0.0, 0.0).error("TTFT p50") == 0
    summary = Summary.of(rows)[0]
    assert (summary.median, summary.worst) == pytest.approx((0.1, 0.3))


def test_a_workload_is_run_and_predicted(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake engines' steps bound the measurement from below, and the simulator knows them."""
    monkeypatch.setattr("corun_pd.bench.quiet.TRIES", 1)  # other tests run beside this one
    out = tmp_path / "out.json"
    options = [
        "--layouts",
        "1P+1D",
        "--only",
        "short",
        "--requests",
        "8",
        "--repeats",
        "1",
        "--longest",
        "128",
    ]
    result = CliRunner().invoke(
        cli, ["bench", "planner", "--fake", "--model", str(model_folder), *options, "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["workload"], row["layout"], row["engine"]) == ("short", "1 prefill, 1 decode", "fake")
    assert row["measured_s"]["TPOT p50"] > 0.015
    assert row["predicted_s"]["TPOT p50"] >= 0.02
    assert set(row["error_ratio"]) == set(METRICS)


def test_layouts_that_are_none_are_refused(tmp_path: Path, model_folder: Path) -> None:
    """With the text."""
    options = ["--fake", "--model", str(model_folder), "--layouts", "2X", "--out", str(tmp_path / "out.json")]
    result = CliRunner().invoke(cli, ["bench", "planner", *options])
    assert result.exit_code == 2
    assert "--layouts 2X: is not as 2C, 2P+1D or 2S" in result.stderr
