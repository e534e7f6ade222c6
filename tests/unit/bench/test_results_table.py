"""`make tables`: texts and figures are what the results give, and the check sees when they are not."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corun_pd.bench.plots import PLOTS, data_digest, plot_file
from corun_pd.errors import SetupError

ROOT = Path(__file__).parents[3]
MACHINE = {"gpus": ["NVIDIA H200, 580"], "cores": 16, "versions": {"vllm": "0.32.0", "torch": "2.11.0"}}


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_table", ROOT / "tools" / "results_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def make_row(experiment: str, mode: str, workload: str = "8/4") -> dict[str, Any]:
    """A row with every field that any experiment's figure takes."""
    return {
        "mode": mode,
        "slots": 8,
        "workload": "one request, 64/128" if experiment == "padding" else workload,
        "output_tokens_per_s": 5.0,
        "wall_s": 2.0,
        "requests_per_s": None,
        "in_flight": 4,
        "ttft_s": [0.1, 0.2],
        "tpot_s": [0.1, 0.2],
        "bin_s": 0.5,
        "prefill_tokens_per_s": [1.0, 0.0],
        "decode_tokens_per_s": [0.0, 2.0],
        "running": [1.0, 1.0],
        "decode_padding_ratio": 0.5,
        "prefill_padding_ratio": 0.0,
        "decode_step_s": 0.01,
        "reversed_same_bits": 3,
        "crowd_same_bits": 2,
        "reversed_requests": 3,
        "prompt_tokens": 1024,
        "kv_bytes": 1000,
        "bytes_per_s": 1e9,
        "pull_s": 0.1,
    }


def make_result(experiment: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    settings = {"shape": "qwen3-8b", "layers": None}
    return {
        "experiment": experiment,
        "date": "2026-01-02",
        "machine": MACHINE,
        "settings": settings,
        "rows": rows,
    }


def write(root: Path, name: str, result: dict[str, Any]) -> Path:
    path = root / "bench" / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with empty sections and one result."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/planner.md", "docs/benchmarks.md", "docs/batch.md"):
        (tmp_path / name).write_text(f"before\n{TOOL.BEGIN}\nold\n{TOOL.END}\nafter\n")
    write(tmp_path, "throughput-qwen3-8b-h200", make_result("throughput", [make_row("throughput", "packed")]))
    return tmp_path


def test_what_was_made_passes_the_check(root: Path) -> None:
    """The text around the markers stays."""
    assert TOOL.main(["--check"], root) == 1
    assert TOOL.main([], root) == 0
    assert TOOL.main(["--check"], root) == 0
    text = (root / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "docs/figures/throughput-qwen3-8b-h200.svg" in text


def test_another_result_fails_the_check_until_it_is_made(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both texts and the figure are named; then all follow."""
    TOOL.main([], root)
    row = make_row("throughput", "packed") | {"output_tokens_per_s": 7.0}
    write(root, "throughput-qwen3-8b-h200", make_result("throughput", [row]))
    assert TOOL.main(["--check"], root) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in ("README.md", "docs/benchmarks.md", "throughput-qwen3-8b-h200.svg"))
    TOOL.main([], root)
    assert TOOL.main(["--check"], root) == 0


def test_a_figure_alone_that_is_old_or_missing_fails_the_check(root: Path) -> None:
    """Rows may change in fields that no table shows."""
    TOOL.main([], root)
    row = make_row("throughput", "packed") | {"unseen": 1}
    write(root, "throughput-qwen3-8b-h200", make_result("throughput", [row]))
    assert TOOL.main(["--check"], root) == 1
    TOOL.main([], root)
    (root / "docs/figures/throughput-qwen3-8b-h200.svg").unlink()
    assert TOOL.main(["--check"], root) == 1


def test_offline_jobs_are_shown_in_a_text_of_their_own(root: Path) -> None:
    """A line for each figure; the other text says where they are."""
    figures = {"lines/s": 3012.4, "job's peak RSS MB": 101.0}
    write(root, "batch-lines", make_result("batch", [{"name": "50 lines", "figures": figures}]))
    TOOL.main([], root)
    text = (root / "docs/batch.md").read_text()
    assert "| 50 lines | lines/s | 3,012 |\n|  | job's peak RSS MB | 101.0 |" in text
    assert "(batch.md#what-it-costs)" in (root / "docs/benchmarks.md").read_text()
    assert TOOL.main(["--check"], root) == 0


def test_a_figure_without_a_result_goes(root: Path) -> None:
    """Its result was taken away."""
    TOOL.main([], root)
    extra = root / "docs/figures/latency-old.svg"
    extra.write_text("<svg/>")
    assert TOOL.main(["--check"], root) == 1
    TOOL.main([], root)
    assert not extra.exists()


def test_results_of_all_experiments_have_a_section_and_a_figure(root: Path) -> None:
    """Those with figures are shown with them in docs/benchmarks.md."""
    for experiment in PLOTS:
        rows = [
            make_row(experiment, "standard"),
            make_row(experiment, "packed"),
            {"mode": "hybrid", "error": "x"},
        ]
        write(root, f"{experiment}-more", make_result(experiment, [{"workload": "", **row} for row in rows]))
    TOOL.main([], root)
    text = (root / "docs/benchmarks.md").read_text()
    for experiment in PLOTS:
        assert f"### {TOOL.HEADINGS[experiment]}" in text
        assert f"figures/{experiment}-more.svg" in text
        assert (root / f"docs/figures/{experiment}-more.svg").exists()


def test_no_result_at_all_leaves_the_section_empty(root: Path) -> None:
    """Nothing is measured yet."""
    (root / "bench/results/throughput-qwen3-8b-h200.json").unlink()
    assert TOOL.main([], root) == 0
    assert (root / "README.md").read_text() == f"before\n{TOOL.BEGIN}\n\n{TOOL.END}\nafter\n"


def test_a_result_of_an_unknown_experiment_is_refused(root: Path) -> None:
    """It would be left out in silence."""
    write(root, "guess", make_result("guesses", []))
    with pytest.raises(SystemExit, match=r"guess\.json"):
        TOOL.main([], root)


def test_a_figure_names_its_data_and_a_table_alone_has_none(tmp_path: Path) -> None:
    """The digest is of the file; determinism is a table."""
    result = write(tmp_path, "a", make_result("timeline", [make_row("timeline", "packed")]))
    plot_file(result, tmp_path / "a.svg")
    assert f"data {data_digest(result)}" in (tmp_path / "a.svg").read_text()
    other = write(tmp_path, "b", make_result("determinism", []))
    assert data_digest(other) != data_digest(result)
    with pytest.raises(SetupError, match="no figure"):
        plot_file(other, tmp_path / "b.svg")


def test_a_figure_of_failures_alone_can_be_drawn(tmp_path: Path) -> None:
    """It is empty, and a session that failed throughout still ends in order."""
    for experiment in PLOTS:
        result = write(tmp_path, experiment, make_result(experiment, [{"mode": "packed", "error": "x"}]))
        plot_file(result, tmp_path / f"{experiment}.svg")
        assert (tmp_path / f"{experiment}.svg").stat().st_size > 0


def test_predictions_and_their_speed_are_in_the_planners_document(root: Path) -> None:
    """Errors as they are, above and below; their absolute median and worst for each layout."""
    metrics = ("makespan", "TTFT p50")

    def row(workload: str, *errors: float) -> dict[str, Any]:
        return {
            "workload": workload,
            "layout": "1 prefill, 1 decode",
            "engine": "vLLM",
            "measured_s": dict.fromkeys(metrics, 2.0),
            "error_ratio": dict(zip(metrics, errors, strict=True)),
            "spread_ratio": dict.fromkeys(metrics, 0.04),
        }

    rows = [row("short", -0.02, 0.1), row("long in", 0.01, -0.3), row("long out", 0.05, 0.0)]
    result = make_result("planner", rows)
    result["settings"] = {"model": "models/tiny", "repeats": 3}
    write(root, "planner-cpu", result)
    simulation = {"what": "simulation", "layouts": "8C", "requests": 1000000, "processes": 1, "wall_s": 31.04}
    write(root, "planner-speed", make_result("planner-speed", [simulation]))
    assert TOOL.main([], root) == 0
    text = (root / "docs/planner.md").read_text()
    assert "| 1 prefill, 1 decode | 2.0% / 5.0% | 10.0% / 30.0% |" in text
    assert "| long in | 1 prefill, 1 decode | 2.00 | +1.0% | -30.0% | 4.0% |" in text
    assert "| simulation | 8C | 1,000,000 | 1 | 31.0 |" in text
    assert "1,000,000" not in (root / "docs/benchmarks.md").read_text()
