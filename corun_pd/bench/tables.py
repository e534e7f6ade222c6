"""Which figures of an experiment's rows a table shows, and how."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from corun_pd.bench.report import print_table
from corun_pd.errors import ConfigError

__all__ = ["COLUMNS", "read_result", "short_lines", "show"]

#: By experiment: (heading, field, what it is multiplied by).
COLUMNS: Final[dict[str, tuple[tuple[str, str, float], ...]]] = {
    "throughput": (
        ("output tokens/s", "output_tokens_per_s", 1),
        ("wall s", "wall_s", 1),
        ("padded rows %", "padding_ratio", 100),
        ("decode step ms", "decode_step_s", 1000),
        ("rows", "decode_step_rows", 1),
    ),
    "timeline": (("prefill done s", "prefill_done_s", 1), ("done s", "done_s", 1)),
    "latency": (
        ("requests/s", "requests_per_s", 1),
        ("TTFT mean s", "ttft_mean_s", 1),
        ("TTFT p95 s", "ttft_p95_s", 1),
        ("TPOT mean ms", "tpot_mean_s", 1000),
        ("TPOT p95 ms", "tpot_p95_s", 1000),
        ("output tokens/s", "output_tokens_per_s", 1),
    ),
    "concurrency": (
        ("in flight", "in_flight", 1),
        ("output tokens/s", "output_tokens_per_s", 1),
        ("TPOT p50 ms", "tpot_p50_s", 1000),
        ("padded rows %", "padding_ratio", 100),
    ),
    "padding": (
        ("N", "slots", 1),
        ("output tokens/s", "output_tokens_per_s", 1),
        ("padded decode rows %", "decode_padding_ratio", 100),
        ("padded prefill rows %", "prefill_padding_ratio", 100),
        ("decode step ms", "decode_step_s", 1000),
    ),
    "decode-step": (
        ("decode step ms", "decode_step_s", 1000),
        ("rows", "decode_step_rows", 1),
        ("steps", "decode_step_samples", 1),
    ),
    "ablation": (
        ("output tokens/s", "output_tokens_per_s", 1),
        ("decode step ms", "decode_step_s", 1000),
        ("reversed: equal", "reversed_same_bits", 1),
        ("crowd: equal", "crowd_same_bits", 1),
        ("alone: equal", "alone_same_bits", 1),
        ("of", "reversed_requests", 1),
    ),
    "determinism": (
        ("requests", "requests", 1),
        ("same tokens", "same_tokens", 1),
        ("same bits", "same_bits", 1),
        ("s", "seconds", 1),
    ),
    "operators": (
        ("kernel", "kernel", 1),
        ("needed", "need", 1),
        ("position differs at", "position_differs", 1),
        ("batch differs at", "batch_differs", 1),
        ("error", "error", 1),
    ),
    "fleet": (
        ("layout", "layout", 1),
        ("output tokens/s", "output_tokens_per_s", 1),
        ("wall s", "wall_s", 1),
        ("TTFT p50 s", "ttft_p50_s", 1),
        ("TTFT p95 s", "ttft_p95_s", 1),
        ("KV moved GB", "kv_moved_bytes", 1e-9),
    ),
    "transfer": (
        ("MB", "kv_bytes", 1e-6),
        ("GB/s", "bytes_per_s", 1e-9),
        ("pull ms", "pull_s", 1e3),
        ("to first decode token ms", "to_first_decode_token_s", 1e3),
        ("rows beside", "beside_rows", 1),
        ("pull beside rows ms", "beside_pull_s", 1e3),
        ("hidden %", "hidden_ratio", 100),
    ),
}

#: What tells an experiment's rows of one mode apart; errors stand here.
KEYS: Final = {"determinism": "run", "transfer": "prompt_tokens", "operators": "operator"}


def show(experiment: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Prints an experiment's rows; errors stand where the figures would."""
    columns, key = COLUMNS[experiment], KEYS.get(experiment, "workload")
    cells = [
        [
            row["mode"],
            row.get(key) or row.get("error", ""),
            *(_cell(row.get(f), by) for _, f, by in columns),
        ]
        for row in rows
    ]
    print_table(experiment, ("mode", key.replace("_", " "), *(heading for heading, _, _ in columns)), cells)


def short_lines(experiment: str, rows: Sequence[Mapping[str, object]], figures: int = 3) -> list[str]:
    """A line for the experiment and one for each row, with its first figures; the values are as in `show`."""
    columns, key = COLUMNS[experiment], KEYS.get(experiment, "workload")
    shown = columns[:figures]
    lines = [f"{experiment}: {', '.join(heading for heading, _, _ in shown)}"]
    for row in rows:
        what = str(row.get(key) or row.get("error", ""))
        cells = (_cell(row.get(field), by) for _, field, by in shown)
        figures_text = "  ".join(f"{c:,.2f}" if isinstance(c, float) else str(c) for c in cells)
        lines.append(f"  {row['mode']!s:16} {what:24} {figures_text}".rstrip())
    return lines


def read_result(result: Path) -> tuple[str, Sequence[Mapping[str, object]]]:
    """An experiment's name and rows. Raises ConfigError for a file that holds none that has a table."""
    try:
        data = json.loads(result.read_text())
        experiment, rows = data["experiment"], data["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{result}: no result of an experiment") from error
    if experiment not in COLUMNS:
        raise ConfigError(f"{result}: experiment {experiment!r} has no table; there are {', '.join(COLUMNS)}")
    return experiment, rows


def _cell(value: object, by: float) -> object:
    if isinstance(value, float) or (value is not None and by != 1):
        return float(value) * by  # type: ignore[arg-type]
    return "" if value is None else value
