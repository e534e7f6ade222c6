"""`corun-pd verify --operators`: is each kernel of a model's step batch- and position-invariant here?"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from corun_pd.bench.report import write_result
from corun_pd.cli.bench_options import model_of, numbers_of
from corun_pd.config import EngineConfig, PrefillConfig, describe_validation
from corun_pd.engine.factory import examine_operators
from corun_pd.engine.operators import OperatorResult, failures
from corun_pd.errors import ConfigError

__all__ = ["DIFFERENT", "UNPROVEN", "verify_operators"]

DIFFERENT = 1
UNPROVEN = 3


def verify_operators(settings: dict[str, Any], json_file: Path | None, console: Console) -> int:
    """Examines, prints, writes; returns the exit code.

    Raises UsageError unless one of --model and --shape is given, ConfigError for a bad value.
    """
    model, config = model_of(settings), _engine(settings)
    timed = numbers_of("--timed", settings["timed"].replace("N", str(config.slots)))
    results, controls = examine_operators(
        model, config, sorted(set(timed)), lambda text: click.echo(text, err=True)
    )
    console.print(_table("operators", results, config.slots))
    console.print(_table("controls, which must not pass", controls, config.slots))
    if json_file is not None:
        rows = [{"mode": settings["mode"], **asdict(result)} for result in results]
        write_result(json_file, "operators", settings, rows, controls=[asdict(one) for one in controls])
    faults, passed = failures(results), [one for one in controls if one.fault is None or one.error]
    for fault in faults:
        console.print(f"[red]{fault}", soft_wrap=True)
    if faults:
        return DIFFERENT
    if passed or not controls:
        names = ", ".join(one.kernel for one in passed) or "none ran"
        console.print(f"[yellow]no fault, but neither in a control ({names}): this proves nothing here")
        return UNPROVEN
    console.print("[green]the contract can rest on every kernel that it uses here")
    return 0


def _engine(settings: dict[str, Any]) -> EngineConfig:
    try:
        return EngineConfig(
            slots=settings["slots"],
            prefill=PrefillConfig(mode=settings["mode"], chunk_tokens=settings["chunk_tokens"]),
            block_tokens=settings["block_tokens"],
            tensor_parallel_size=settings["tensor_parallel"],
        )
    except ValidationError as error:
        raise ConfigError(f"verify: {describe_validation(error)}") from error


def _table(title: str, results: Sequence[OperatorResult], slots: int) -> Table:
    """One row a kernel. A kernel that fails what is needed of it is red."""
    counts = sorted({count for result in results for count in result.latency_s})
    table = Table(title=f"{title}, N = {slots}")
    for name in ("operator", "kernel", "shape", "batch-invariant", "position-invariant", "needed"):
        table.add_column(name)
    for count in counts:
        table.add_column(f"µs, {count:,} rows", justify="right")
    for result in results:
        times = (
            f"{result.latency_s[count] * 1e6:,.1f}" if count in result.latency_s else "-" for count in counts
        )
        table.add_row(
            result.operator,
            result.kernel,
            result.shape,
            _holds(result.is_batch_invariant, result.batch_differs, result.error),
            _holds(result.is_position_invariant, result.position_differs, result.error),
            str(result.need),
            *times,
            style="red" if result.fault is not None else None,
        )
    return table


def _holds(is_so: bool | None, differs: Sequence[int], error: str | None) -> str:
    if error is not None:
        return f"could not be run: {error}"
    if is_so is None:
        return "-"
    return "yes" if is_so else f"no, at {', '.join(map(str, differs))} rows"
