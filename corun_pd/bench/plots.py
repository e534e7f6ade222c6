"""A figure of each experiment's JSON, after the paper's Figures 8 to 13. Matplotlib is the `plot` extra."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from corun_pd.bench.experiments import TOTAL
from corun_pd.bench.modes import COMPILED
from corun_pd.errors import SetupError

__all__ = ["PLOTS", "data_digest", "plot_file"]

Rows = Sequence[Mapping[str, Any]]

#: Modes keep their colours in every figure.
COLOURS: Final = {
    "standard": "#7f7f7f",
    "batch-invariant": "#d62728",
    "isolated": "#1f77b4",
    "packed": "#2ca02c",
    "hybrid": "#9467bd",
    "isolated prefill alone": "#c6dbef",
    "isolated, Split-KV off": "#9ecae1",
    "isolated, decode not padded": "#6baed6",
    "isolated, sampler not padded": "#4292c6",
}


def plot_file(result: Path, out: Path) -> None:
    """Draws a result. The figure names its data by their digest, so that a test can tell an old one.

    Raises SetupError without matplotlib, and for an experiment that has no figure.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SetupError("figures need matplotlib: pip install 'corun-pd[plot]'") from error
    data = json.loads(result.read_text())
    if data["experiment"] not in PLOTS:
        raise SetupError(f"{result}: experiment {data['experiment']!r} has no figure")
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in data["rows"] if "error" not in row]
    style = {"svg.hashsalt": "corun-pd", "svg.fonttype": "none", "font.size": 8, "axes.spines.top": False}
    with mpl.rc_context(style | {"axes.spines.right": False, "legend.frameon": False}):
        figure = PLOTS[data["experiment"]](plt, rows)
        out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"Date": None, "Description": f"data {data_digest(result)}"} if out.suffix == ".svg" else None
        figure.savefig(out, metadata=facts, bbox_inches="tight", dpi=120)
        plt.close(figure)


def data_digest(result: Path) -> str:
    """What stands in a figure to name its data."""
    return hashlib.sha256(result.read_bytes()).hexdigest()[:16]


def throughput(plt: Any, rows: Rows) -> Any:
    """Bars by workload, the aggregate last."""
    return _bars(plt, rows, "output_tokens_per_s", "output tokens/s")


def timeline(plt: Any, rows: Rows) -> Any:
    """Prefill above, decode below, over time."""
    figure, axes = plt.subplots(3, 1, figsize=(6, 5.4), sharex=True)
    names = ("prefill_tokens_per_s", "decode_tokens_per_s", "running")
    for axis, name, label in zip(
        axes, names, ("prefill tokens/s", "decode tokens/s", "requests"), strict=True
    ):
        for row in rows:
            times = [(at + 0.5) * row["bin_s"] for at in range(len(row[name]))]
            axis.plot(times, row[name], label=row["mode"], color=_colour(row["mode"]), linewidth=1)
        axis.set_ylabel(label)
    axes[-1].set_xlabel("s")
    figure.tight_layout()
    _legend_above(figure, axes[0])
    return figure


def latency(plt: Any, rows: Rows) -> Any:
    """Distributions of TTFT and TPOT: a row of panels each, a column for each load."""
    loads = list(dict.fromkeys(row["requests_per_s"] for row in rows)) or [None]
    figure, axes = plt.subplots(2, len(loads), figsize=(3 * len(loads), 4.6), squeeze=False)
    for column, load in enumerate(loads):
        for line, (name, label, by) in enumerate((("ttft_s", "TTFT (s)", 1), ("tpot_s", "TPOT (ms)", 1000))):
            axis = axes[line][column]
            for row in rows:
                if row["requests_per_s"] == load:
                    values = [value * by for value in row[name]]
                    shares = [at / (len(values) - 1) for at in range(len(values))]
                    axis.plot(values, shares, label=row["mode"], color=_colour(row["mode"]), linewidth=1)
            axis.set_xlabel(label)
            axis.set_ylabel("share of requests" if column == 0 else "")
        axes[0][column].set_title("closed loop" if load is None else f"{load:g} requests/s")
    figure.tight_layout()
    _legend_above(figure, axes[0][0])
    return figure


def concurrency(plt: Any, rows: Rows) -> Any:
    """Throughput over the requests in flight."""
    return _lines(plt, rows, "in_flight", "requests in flight")


def padding(plt: Any, rows: Rows) -> Any:
    """One request alone on N rows, over N; and the padded share of each workload beside it."""
    alone = [row for row in rows if row["workload"].startswith("one request")]
    others = [row for row in rows if not row["workload"].startswith("one request")]
    if len({row["slots"] for row in alone}) > 1:
        return _lines(plt, alone, "slots", "N, one request in flight")
    figure, axes = plt.subplots(1, 2, figsize=(10, 2.8))
    for axis, name in zip(axes, ("decode", "prefill"), strict=True):
        shares = [{**row, "share": 100 * row[f"{name}_padding_ratio"]} for row in [*others, *alone]]
        _draw_bars(axis, shares, "share")
        axis.set_ylabel(f"padded {name} rows (%)")
    figure.tight_layout()
    _legend_above(figure, axes[0])
    return figure


def decode_step(plt: Any, rows: Rows) -> Any:
    """Milliseconds of a step of N rows."""
    found = [{**row, "step_ms": 1000 * row["decode_step_s"]} for row in rows if row["decode_step_s"]]
    return _bars(plt, found, "step_ms", "decode step (ms)")


def ablation(plt: Any, rows: Rows) -> Any:
    """Throughput with one mechanism more from bar to bar; above each, how many requests stay equal."""
    figure, axis = plt.subplots(figsize=(8, 3))
    _draw_bars(axis, rows, "output_tokens_per_s")
    axis.set_ylabel("output tokens/s")
    equal = {r["mode"]: min(r[f"{run}_same_bits"] for run in ("reversed", "crowd")) for r in rows}
    count = next((row["reversed_requests"] for row in rows), 0)
    labels = [f"{mode}: {equal.get(mode, 0)} of {count} equal" for mode in equal]
    axis.legend(axis.get_legend_handles_labels()[0], labels, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def transfer(plt: Any, rows: Rows) -> Any:
    """GB/s and milliseconds by prompt length."""
    figure, axes = plt.subplots(1, 2, figsize=(6, 2.4))
    names = [f"{row['prompt_tokens']:,}" for row in rows]
    axes[0].bar(names, [(row["bytes_per_s"] or 0) / 1e9 for row in rows], color=COLOURS["packed"])
    axes[0].set_ylabel("GB/s")
    axes[1].bar(names, [1000 * row["pull_s"] for row in rows], color=COLOURS["packed"])
    axes[1].set_ylabel("pull (ms)")
    for axis in axes:
        axis.set_xlabel("prompt tokens")
    figure.tight_layout()
    return figure


def _bars(plt: Any, rows: Rows, field: str, label: str) -> Any:
    figure, axis = plt.subplots(figsize=(8, 2.8))
    _draw_bars(axis, rows, field)
    axis.set_ylabel(label)
    figure.tight_layout()
    _legend_above(figure, axis)
    return figure


def _legend_above(figure: Any, axis: Any) -> None:
    """One legend for all panels, where it hides none."""
    figure.legend(*axis.get_legend_handles_labels(), ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))


def _draw_bars(axis: Any, rows: Rows, field: str) -> None:
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    workloads = list(dict.fromkeys(row["workload"] for row in rows if row["workload"] != TOTAL))
    workloads += [TOTAL] if any(row["workload"] == TOTAL for row in rows) else []
    values = {(row["mode"], row["workload"]): row[field] for row in rows}
    width = 0.8 / max(1, len(modes))
    for at, mode in enumerate(modes):
        places = [x - 0.4 + (at + 0.5) * width for x in range(len(workloads))]
        heights = [values.get((mode, workload)) or 0.0 for workload in workloads]
        hatch = "///" if mode.endswith(COMPILED) else None
        axis.bar(places, heights, width, label=mode, color=_colour(mode), hatch=hatch, edgecolor="white")
    axis.set_xticks(range(len(workloads)), [_broken(name) for name in workloads])


def _broken(name: str) -> str:
    """A workload's name in lines that are short enough to stand under its bars."""
    return name.replace(", ", ",\n").replace("-stand-in", "\nstand-in").replace("KV tokens", "KV tokens\n")


def _lines(plt: Any, rows: Rows, field: str, label: str) -> Any:
    figure, axis = plt.subplots(figsize=(4.5, 2.8))
    for mode in dict.fromkeys(row["mode"] for row in rows):
        points = sorted((row[field], row["output_tokens_per_s"]) for row in rows if row["mode"] == mode)
        axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=mode, color=_colour(mode))
    axis.set_xlabel(label)
    axis.set_ylabel("output tokens/s")
    places = sorted({row[field] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_xticks(places, [str(place) for place in places])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.legend(*axis.get_legend_handles_labels())
    return figure


def _colour(mode: str) -> str | None:
    """None lets matplotlib choose."""
    return COLOURS.get(mode.removesuffix(COMPILED))


#: By experiment.
PLOTS: Final[dict[str, Callable[[Any, Rows], Any]]] = {
    "throughput": throughput,
    "timeline": timeline,
    "latency": latency,
    "concurrency": concurrency,
    "padding": padding,
    "decode-step": decode_step,
    "ablation": ablation,
    "transfer": transfer,
}
