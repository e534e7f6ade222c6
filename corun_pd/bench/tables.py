"""Which figures of an experiment's rows a table shows, and how."""

from collections.abc import Mapping, Sequence
from typing import Final

from corun_pd.bench.report import print_table

__all__ = ["COLUMNS", "show"]

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
}


def show(experiment: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Prints an experiment's rows; errors stand where the figures would."""
    columns = COLUMNS[experiment]
    cells = [
        [
            row["mode"],
            row["workload"] or row.get("error", ""),
            *(_cell(row.get(f), by) for _, f, by in columns),
        ]
        for row in rows
    ]
    print_table(experiment, ("mode", "workload", *(heading for heading, _, _ in columns)), cells)


def _cell(value: object, by: float) -> object:
    if isinstance(value, float):
        return value * by
    return "" if value is None else value
