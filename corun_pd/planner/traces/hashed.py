"""Traces whose prompts are lists of block hashes: Mooncake's and vLLM's timed trace, one object a line.

They share their keys and differ in their units, so the units are asked for and never guessed:

    Mooncake (https://github.com/kvcache-ai/Mooncake)    milliseconds, 512 tokens per hash id
    vLLM's timed trace                                   seconds, 16 tokens per hash id
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from corun_pd.planner.traces.clock import Clock
from corun_pd.planner.traces.files import Json, json_rows
from corun_pd.planner.traces.report import Drop, Note, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["HashedTrace", "mooncake", "vllm_timed"]


def mooncake(path: Path) -> "HashedTrace":
    """Mooncake's traces: milliseconds and 512-token blocks."""
    return HashedTrace(path, stamps="milliseconds", block_tokens=512)


def vllm_timed(path: Path, block_tokens: int = 16) -> "HashedTrace":
    """vLLM's timed traces: seconds and, unless said otherwise, 16-token blocks."""
    return HashedTrace(path, stamps="seconds", block_tokens=block_tokens)


class HashedTrace(Trace):
    """`input_length` alone is the prompt's length. `hash_ids` become the prefix, in full width.

    Ids whose number is not ceil(input_length / block_tokens) cannot be those of the prompt's blocks: the row
    is kept without them, and noted. Whether the trace has times is settled by its first row.
    """

    def __init__(self, path: Path, *, stamps: Literal["seconds", "milliseconds"], block_tokens: int) -> None:
        super().__init__(
            str(path), f"time stamps in {stamps}, {block_tokens} tokens per hash id, lengths in tokens"
        )
        self.block_tokens = block_tokens
        self._path = path
        self._ticks_per_s = 1000 if stamps == "milliseconds" else 1

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        clock = Clock(report, self._ticks_per_s)
        timed: bool | None = None
        for row in json_rows(self._path, report):
            stamp, prompt, output = row.get("timestamp"), row.get("input_length"), row.get("output_length")
            if not isinstance(prompt, int) or not isinstance(output, int):
                report.drop(Drop.NOT_A_NUMBER)
                continue
            if not (stamp is None or (isinstance(stamp, int | float) and math.isfinite(stamp))):
                report.drop(Drop.NOT_A_NUMBER)
                continue
            if prompt <= 0 or output <= 0:
                report.drop(_fault(prompt, output))
                continue
            if timed is None:
                timed = stamp is not None
            if stamp is None and timed:
                report.drop(Drop.NO_TIME)
                continue
            if stamp is not None and not timed:
                report.notes[Note.UNTIMED] += 1
            arrival_s = clock.read(stamp) if timed and stamp is not None else None
            request = TraceRequest(
                arrival_s, prompt, output, self._prefix(row.get("hash_ids"), prompt, report)
            )
            report.keep(request)
            yield request

    def _prefix(self, ids: Json, prompt: int, report: TraceReport) -> tuple[int, ...] | None:
        if ids is None:
            return None
        count = -(-prompt // self.block_tokens)
        if isinstance(ids, list) and len(ids) == count and set(map(type, ids)) == {int}:
            return tuple(ids)  # type: ignore[arg-type] # all of them are integers
        report.notes[Note.WRONG_BLOCKS] += 1
        return None


def _fault(prompt: int, output: int) -> Drop:
    if prompt < 0 or output < 0:
        return Drop.NEGATIVE
    return Drop.FAILED if prompt else Drop.NO_PROMPT
