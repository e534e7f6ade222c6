"""Results shown on a terminal and as Markdown."""

import json
from pathlib import Path
from typing import Any

import pytest

from corun_pd.bench import markdown
from corun_pd.bench.tables import COLUMNS, read_result, short_lines, show
from corun_pd.errors import ConfigError

MACHINE = {"gpus": ["NVIDIA H200, 580"], "cores": 16, "versions": {"vllm": "0.32.0", "torch": "2.11.0"}}


def make_result(
    rows: list[dict[str, object]], experiment: str = "throughput", **settings: object
) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "date": "2026-01-02",
        "machine": MACHINE,
        "settings": {"shape": "qwen3-8b", "layers": None, **settings},
        "rows": rows,
    }


def make_rate(mode: str, workload: str, rate: float, wall_s: float = 1.0) -> dict[str, object]:
    return {"mode": mode, "workload": workload, "output_tokens_per_s": rate, "wall_s": wall_s}


def cells(text: str) -> list[list[str]]:
    """The cells of a Markdown table, its head first."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_throughput_is_set_against_standard_and_aggregated_by_time() -> None:
    """All tokens over all time: 100 and 300 in 1 + 9 s, against 200 and 300 in 1 + 4 s."""
    rows = [
        make_rate("standard", "a", 200.0),
        make_rate("standard", "b", 75.0, 4.0),
        make_rate("packed", "a", 100.0),
        make_rate("packed", "b", 100 / 3, 9.0),
        make_rate("packed", "total", 999.0),
    ]
    assert cells(markdown.throughput(make_result(rows)))[1:] == [
        ["standard", "200 (1.00)", "75 (1.00)", "100 (1.00)"],
        ["packed", "100 (0.50)", "33 (0.44)", "40 (0.40)"],
    ]


def test_a_mode_that_lacks_a_workload_has_no_aggregate() -> None:
    """An aggregate over fewer workloads is another number."""
    error: dict[str, object] = {"mode": "packed", "workload": "", "error": "no time left"}
    rows = [
        make_rate("standard", "a", 8.0),
        make_rate("standard", "b", 8.0),
        make_rate("packed", "a", 4.0),
        error,
    ]
    assert cells(markdown.throughput(make_result(rows)))[-1] == ["packed", "4 (0.50)", "-", "-"]


def test_without_standard_there_are_no_ratios() -> None:
    """And a mode that did not start is a line without figures."""
    rows: list[dict[str, object]] = [
        make_rate("packed", "a", 4.0),
        {"mode": "isolated", "workload": "", "error": "x"},
    ]
    assert cells(markdown.throughput(make_result(rows)))[1:] == [["packed", "4", "4"], ["isolated", "-", "-"]]


def test_determinism_shows_each_run_and_names_what_was_not_made() -> None:
    """Of what differs, how many are at least equal in tokens."""
    rows: list[dict[str, object]] = [
        {"mode": "packed", "run": "reversed", "requests": 2048, "same_tokens": 2048, "same_bits": 2048},
        {"mode": "packed", "run": "crowd", "requests": 2048, "same_tokens": 2047, "same_bits": 1000},
        {"mode": "packed", "error": "restart: left out, 3 s were left"},
    ]
    text = markdown.determinism([make_result(rows, "determinism", longest=8000, layers=12)])
    assert cells(text)[1] == [
        "Qwen3-8B, 12 layers",
        "packed",
        "-",
        "all 2,048",
        "1,000 of 2,048 (tokens: 2,047)",
        "-",
        "-",
    ]
    assert "up to 2,048 prompts of 1 to 8,000 tokens" in text
    assert "Not measured: Qwen3-8B, 12 layers, packed: restart: left out, 3 s were left." in text
    assert markdown.determinism([]) == ""


def test_a_shapes_own_layers_are_named_and_a_folder_is_its_name() -> None:
    """What is compared across results is in the heading."""
    assert markdown.subject(make_result([])) == "Qwen3-8B, 36 layers"
    assert markdown.subject(make_result([], shape=None, model="models/qwen3-wide")) == "qwen3-wide"


def test_operators_name_the_row_counts_at_which_they_fail() -> None:
    """A kernel that could not be run is not a kernel that fails."""
    row = {"operator": "softmax", "shape": "8", "need": "position", "latency_s": {"1": 1e-6, "256": 4.5e-6}}
    tried = {"batch_sizes": [1, 8], "position_shapes": [8]}
    rows: list[dict[str, object]] = [
        {**row, **tried, "kernel": "a", "batch_differs": [8], "position_differs": [], "error": None},
        {**row, "kernel": "b", "batch_sizes": [], "position_shapes": [], "error": "no kernel"}
        | {"batch_differs": [], "position_differs": [], "latency_s": {}},
    ]
    first, second = cells(markdown.operators(make_result(rows, "operators")))[1:]
    assert first == ["softmax", "a", "8", "no, at 8 rows", "yes", "position", "1.00", "4.50"]
    assert second[3:] == ["could not be run: no kernel"] * 2 + ["position", "", ""]


def test_every_experiments_rows_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without a figure, and errors, have a place."""
    for experiment, columns in COLUMNS.items():
        row: dict[str, object] = {"mode": "packed", **{field: 2 for _, field, _ in columns}}
        row |= {"workload": "w", "run": "w", "prompt_tokens": 7, "operator": "w"}
        rows = [row, {"mode": "isolated", "error": "out of memory"}]
        lines = cells(markdown.listing(make_result(rows, experiment)))
        assert lines[1][0] == "packed"
        assert all(lines[1])
        assert lines[2][:2] == ["isolated", "out of memory"]
        show(experiment, rows)
        assert "out of memory" in capsys.readouterr().out
        assert short_lines(experiment, rows)[2].split(maxsplit=1) == ["isolated", "out of memory"]


def test_short_lines_hold_the_first_figures() -> None:
    """Scaled as in the table."""
    row = {"mode": "packed", "workload": "8/4", "decode_step_s": 0.0125, "decode_step_rows": 256}
    assert short_lines("decode-step", [row], figures=2)[1].split() == ["packed", "8/4", "12.50", "256"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"experiment": "x"}', json.dumps({"experiment": "x", "rows": []})]
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it."""
    file = tmp_path / "no.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"no\.json"):
        read_result(file)
