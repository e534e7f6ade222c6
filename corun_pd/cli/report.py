"""The outcome of `corun-pd verify` as a table and as JSON."""

from typing import Any

from rich.table import Table

from corun_pd.bench.compare import Comparison
from corun_pd.bench.determinism import Report

__all__ = ["as_json", "as_table"]


def as_table(report: Report, *, is_control: bool) -> Table:
    """One row a run."""
    title = "negative control: standard engine" if is_control else f"contract {report.fingerprint[:16]}"
    table = Table(title=title, caption=f"compared with: {report.reference}")
    table.add_column("run")
    table.add_column("identical", justify="right")
    table.add_column("first difference")
    for comparison in report.comparisons:
        cells = comparison.name, f"{comparison.identical}/{comparison.count}", _first(report, comparison)
        table.add_row(*cells, style=None if comparison.is_identical or is_control else "red")
    return table


def as_json(report: Report, control: Report | None) -> dict[str, Any]:
    """Everything that the table says, and every difference."""
    return {"check": _report(report), "control": None if control is None else _report(control)}


def _report(report: Report) -> dict[str, Any]:
    return {
        "fingerprint": report.fingerprint,
        "reference": report.reference,
        "identical": report.is_identical,
        "runs": [
            {
                "name": comparison.name,
                "requests": comparison.count,
                "identical": comparison.identical,
                "differences": [str(difference) for difference in comparison.differences],
            }
            for comparison in report.comparisons
        ],
        "leaks": list(report.leaks),
    }


def _first(report: Report, comparison: Comparison) -> str:
    if not comparison.differences:
        return ""
    difference = comparison.differences[0]
    position = "" if difference.position is None else f", token {difference.position}"
    request = report.requests[difference.request].describe()
    return f"{difference.field} of request {difference.request}{position} ({request})"
