"""A plan as one HTML file with its figures inside. Matplotlib is the `plot` extra."""

import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from corun_pd.errors import SetupError
from corun_pd.planner.outcome import Percentiles
from corun_pd.planner.search import Plan
from corun_pd.planner.sensitivity import Sensitivity

__all__ = ["write_page"]

_STYLE: Final = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "pre{background:#f6f6f6;padding:.8em;overflow-x:auto}figure{margin:1.5em 0}"
    "svg{max-width:100%;height:auto}"
)

_PREFILL, _DECODE = "#1f77b4", "#2ca02c"


def write_page(
    path: Path,
    *,
    inputs: Sequence[str],
    plans: Sequence[Plan],
    table: Sequence[str],
    words: Sequence[str],
    rows: Sequence[Sensitivity],
) -> None:
    """Writes the report. `plans` meet the goal, best first; `inputs` are lines on the workload and memory.

    Raises SetupError without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SetupError("the report's figures need matplotlib: pip install 'corun-pd[plot]'") from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    best = plans[0]
    figures = [
        ("Throughput over the ratio of prefill to decode instances", lambda axes: _ratio(axes, plans)),
        ("Use of both pools over time, best plan", lambda axes: _use(axes, best)),
        ("Latencies of the best plan", lambda axes: _latencies(axes, best)),
        ("Makespan against GPUs; the frontier", lambda axes: _frontier(axes, plans)),
    ]
    style = {"svg.hashsalt": "corun-pd", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
    with mpl.rc_context(style | {"axes.spines.right": False, "legend.frameon": False}):
        drawn = [_figure(plt, title, draw) for title, draw in figures]
    body = [
        f"<h1>{html.escape(best.layout.words)}, N = {best.layout.slots}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in words),
        "<h2>Layouts</h2>",
        f"<pre>{html.escape(chr(10).join(table))}</pre>",
        *drawn,
        "<h2>When an assumption is off by a fifth</h2>",
        _sensitivity(rows),
        "<h2>Workload and memory</h2>",
        f"<pre>{html.escape(chr(10).join(inputs))}</pre>",
    ]
    page = f'<!doctype html><meta charset="utf-8"><title>Capacity plan</title><style>{_STYLE}</style>'
    path.write_text(page + "\n".join(body) + "\n", encoding="utf-8")


def _figure(plt: Any, title: str, draw: Callable[[Any], None]) -> str:
    figure, axes = plt.subplots(figsize=(7, 3))
    draw(axes)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    svg = buffer.getvalue()
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{svg[svg.index('<svg') :]}</figure>"


def _ratio(axes: Any, plans: Sequence[Plan]) -> None:
    """One line for each number of GPUs, mode and N; colocated layouts are level lines."""
    lines: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for plan in plans:
        layout, prefill = plan.layout, plan.profile.prefill
        rate, name = plan.outcome.output_tokens_per_s, f"{prefill.mode} {prefill.chunk_tokens}"
        if layout.colocated:
            axes.axhline(rate, color="#bbb", linewidth=0.8, zorder=0)
            axes.annotate(f"{layout.colocated}C", (1, rate), xycoords=("axes fraction", "data"), fontsize=7)
        else:
            key = (plan.gpus, name, layout.slots)
            lines.setdefault(key, []).append((layout.prefill / layout.decode, rate))
    for (gpus, name, slots), points in sorted(lines.items()):
        points.sort()
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, label=f"{gpus} GPUs, {name}, N = {slots}")
    if lines:
        axes.set_xscale("log", base=2)
        if len(lines) <= 10:
            axes.legend(fontsize=7)
    axes.set(xlabel="prefill : decode", ylabel="output tokens/s", ylim=(0, None))


def _use(axes: Any, plan: Plan) -> None:
    for name, use, colour in (
        ("prefill: time in steps", plan.outcome.prefill, _PREFILL),
        ("decode: slots with a row", plan.outcome.decode, _DECODE),
    ):
        edges = [use.bin_s * at for at in range(len(use.use_over_time) + 1)]
        axes.stairs(use.use_over_time, edges, label=f"{name}, {use.use_ratio:.0%}", color=colour)
    axes.set(xlabel="seconds", ylabel="share", ylim=(0, 1.05))
    axes.legend(fontsize=7)


def _latencies(axes: Any, plan: Plan) -> None:
    shares = (50, 90, 95, 99, 100)
    for name, found, colour in (
        ("TTFT", plan.outcome.ttft, _PREFILL),
        ("TPOT", plan.outcome.tpot, _DECODE),
    ):
        axes.plot(_points(found), shares, "o-", markersize=3, label=name, color=colour)
    if plan.outcome.ttft.p50 > 0 and plan.outcome.tpot.p50 > 0:
        axes.set_xscale("log")
    axes.set(xlabel="seconds", ylabel="% of requests at most")
    axes.legend(fontsize=7)


def _points(found: Percentiles) -> tuple[float, ...]:
    return found.p50, found.p90, found.p95, found.p99, found.most


def _frontier(axes: Any, plans: Sequence[Plan]) -> None:
    """All plans that meet the goal; the line joins those that no other beats in both."""
    spans = [plan.outcome.makespan_s for plan in plans]
    axes.plot([plan.gpus for plan in plans], spans, ".", color=_DECODE, label="layouts that meet the goal")
    front: list[tuple[int, float]] = []
    for gpus, span_s in sorted((plan.gpus, plan.outcome.makespan_s) for plan in plans):
        if not front or span_s < front[-1][1]:
            front.append((gpus, span_s))
    axes.plot(*zip(*front, strict=True), "-", color="#444", linewidth=0.8, label="frontier")
    axes.set(xlabel="GPUs", ylabel="makespan in seconds", ylim=(0, None))
    axes.legend(fontsize=7)


def _sensitivity(rows: Sequence[Sensitivity]) -> str:
    head = "<tr><th>assumption<th>taken<th>makespan<th>TTFT p95, s<th>TPOT p95, s<th>meets the goal</tr>"
    lines = [
        f"<tr><td>{html.escape(row.assumption)}<td>{row.factor:.0%}<td>{row.makespan_ratio - 1:+.1%}"
        f"<td>{row.outcome.ttft.p95:.3g}<td>{row.outcome.tpot.p95:.3g}"
        f"<td>{'yes' if row.meets_goal else 'no'}</tr>"
        for row in rows
    ]
    return f"<table>{head}{''.join(lines)}</table>"
