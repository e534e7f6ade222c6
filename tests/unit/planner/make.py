"""Trace files and what readers make of them."""

import json
from pathlib import Path
from typing import Any

from corun_pd.planner.traces import Trace, TraceRequest

SIX = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
EIGHT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(path: Path, *rows: object) -> Path:
    """A file of lines; what is not text becomes JSON."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read(trace: Trace) -> list[TraceRequest]:
    """All requests; the counts must add up, whatever was read."""
    requests = list(trace)
    report = trace.report
    assert report.rows == report.kept + report.dropped.total()
    assert report.requests == len(requests)
    assert report.prompt_tokens == sum(request.prompt_tokens for request in requests)
    assert report.output_tokens == sum(request.output_tokens for request in requests)
    return requests


def dialogue(*turns: tuple[str, str]) -> dict[str, Any]:
    """A ShareGPT dialogue."""
    return {"conversations": [{"from": speaker, "value": value} for speaker, value in turns]}
