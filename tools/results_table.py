"""Makes the tables and figures of measurements from bench/results/*.json.

    python tools/results_table.py [--check]

Replaces what stands between the markers of README.md (the few tables a reader wants), docs/planner.md (the
planner's), docs/batch.md (offline jobs) and docs/benchmarks.md (all others), and draws docs/figures. With
--check it changes nothing and fails when a text or a figure is not what the data give. A result that is not
there is left out.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from corun_pd.bench import markdown
from corun_pd.bench.plots import PLOTS, data_digest, plot_file
from corun_pd.errors import SetupError

ROOT: Final = Path(__file__).parents[1]
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

#: Experiments in the order of docs/benchmarks.md, with their headings.
HEADINGS: Final = {
    "determinism": "Determinism",
    "operators": "Operators",
    "throughput": "Throughput",
    "timeline": "Timeline",
    "latency": "Latency",
    "concurrency": "Concurrency",
    "padding": "Padding",
    "decode-step": "Decode step",
    "ablation": "Ablation",
    "transfer": "KV transfer",
    "router": "Router",
    "batch": "Offline jobs",
}

#: Those of docs/planner.md.
PLANNER: Final = ("planner", "planner-speed")

#: The throughput that the README shows; the rest is in docs/benchmarks.md.
README_THROUGHPUT: Final = ("throughput-qwen3-8b-h200", "throughput-qwen3-8b-12-layers-h200")

Results = dict[str, dict[str, Any]]


def load(folder: Path) -> Results:
    """The results by the names of their files, in order. Exits on one of no known experiment."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    for name, result in results.items():
        if result.get("experiment") not in (*HEADINGS, *PLANNER):
            raise SystemExit(f"{folder / name}.json: experiment {result.get('experiment')!r} has no section")
    return results


def readme(results: Results) -> str:
    """Determinism, throughput and the router."""
    parts = [markdown.determinism(_of(results, "determinism"))]
    shown = [name for name in README_THROUGHPUT if name in results]
    parts += [markdown.throughput(results[name]) for name in shown]
    parts += [f"![Output tokens a second](docs/figures/{name}.svg)" for name in shown[:1]]
    parts += [markdown.router(result) for result in _of(results, "router")]
    return _join(parts)


def batch(results: Results) -> str:
    """Offline jobs."""
    return _join([markdown.batch(_of(results, "batch"))])


def benchmarks(results: Results) -> str:
    """Every result, with its figure."""
    parts = []
    for experiment, heading in HEADINGS.items():
        found = {name: one for name, one in results.items() if one["experiment"] == experiment}
        if not found:
            continue
        parts.append(f"### {heading}")
        if experiment == "determinism":
            parts.append(markdown.determinism(list(found.values())))
            continue
        if experiment == "batch":
            parts.append("In [offline jobs](batch.md#what-it-costs).")
            continue
        for name, result in found.items():
            parts.append(_section(result))
            if experiment in PLOTS:
                parts.append(f"![{heading}: {name}](figures/{name}.svg)")
    return _join(parts)


def planner(results: Results) -> str:
    """How far predictions are from measurements, and how long they take."""
    speed = [markdown.planner_speed(result) for result in _of(results, "planner-speed")]
    return _join([markdown.planner(_of(results, "planner")), *speed])


def _section(result: dict[str, Any]) -> str:
    match result["experiment"]:
        case "throughput":
            return f"{markdown.throughput(result)}\n\n{markdown.listing(result)}"
        case "operators":
            return markdown.operators(result)
        case "router":
            return markdown.router(result)
        case _:
            return markdown.listing(result)


def _of(results: Results, experiment: str) -> list[dict[str, Any]]:
    return [result for result in results.values() if result["experiment"] == experiment]


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join([BEGIN, *(part for part in parts if part), END])


def replaced(text: str, section: str, place: Path) -> str:
    """The text with the section between its markers. Exits when it has none."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{place} has no {BEGIN} ... {END}")
    return before + section + after


def stale_figures(results: Results, folder: Path, figures: Path) -> list[str]:
    """Names of results whose figure is missing or was drawn from other data."""
    stale = []
    for name, result in results.items():
        if result["experiment"] in PLOTS:
            drawn = figures / f"{name}.svg"
            digest = f"data {data_digest(folder / f'{name}.json')}"
            if not drawn.exists() or digest not in drawn.read_text():
                stale.append(name)
    return stale


def extra_figures(results: Results, figures: Path) -> list[Path]:
    """Figures without a result."""
    wanted = {name for name, result in results.items() if result["experiment"] in PLOTS}
    return [path for path in sorted(figures.glob("*.svg")) if path.stem not in wanted]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Writes or checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args(arguments).check
    folder, figures = root / "bench" / "results", root / "docs" / "figures"
    results = load(folder)
    wrong = []
    places = {
        "README.md": readme,
        "docs/planner.md": planner,
        "docs/batch.md": batch,
        "docs/benchmarks.md": benchmarks,
    }
    for place, section in ((root / name, made_by) for name, made_by in places.items()):
        text = place.read_text()
        made = replaced(text, section(results), place)
        if made != text:
            wrong.append(str(place.relative_to(root)))
            if not is_check:
                place.write_text(made)
    stale, extra = stale_figures(results, folder, figures), extra_figures(results, figures)
    wrong += [f"docs/figures/{name}.svg" for name in stale]
    wrong += [str(path.relative_to(root)) for path in extra]
    if is_check:
        for name in wrong:
            print(f"{name} is not what bench/results gives: run make tables", file=sys.stderr)
        return 1 if wrong else 0
    for name in stale:
        try:
            plot_file(folder / f"{name}.json", figures / f"{name}.svg")
        except SetupError as error:
            raise SystemExit(str(error)) from error
    for path in extra:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
