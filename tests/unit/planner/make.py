"""Trace files and what readers make of them; profiles and layouts for simulations."""

import json
from pathlib import Path
from typing import Any

from corun_pd.planner.cost import Profile
from corun_pd.planner.layout import Layout
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


def make_profile(**changes: Any) -> Profile:
    """Round numbers: a packed step takes 1 s, a decode step 0.1 s, a KV token a millisecond to move."""
    fields = {
        "machine": {},
        "versions": {},
        "fingerprint": "f" * 64,
        "prefill": {"mode": "packed", "chunk_tokens": 100, "full_step_s": 1.0},
        "decode": [{"slots": 1, "base_s": 0.1}, {"slots": 64, "base_s": 0.1}],
        "kv_bytes_per_token": 1000,
        "transfer": {"latency_s": 0.5, "bytes_per_s": 1e6},
        "start_up_s": 30.0,
    }
    return Profile.model_validate(fields | changes)


def make_layout(**changes: int) -> Layout:
    """One prefill and one decode instance with ample room, or what `changes` says."""
    counts = {} if "colocated" in changes else {"prefill": 1, "decode": 1}
    return Layout(**{"slots": 4, "blocks": 1000, "block_tokens": 16, **counts, **changes})
