"""BurstGPT (https://github.com/HPMLL/BurstGPT): CSV of six columns, or eight since its release 2.0."""

import math
from collections.abc import Iterator
from pathlib import Path

from corun_pd.planner.traces.clock import Clock
from corun_pd.planner.traces.files import csv_rows
from corun_pd.planner.traces.report import Drop, Note, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["BurstGpt"]

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens", "Total tokens")


class BurstGpt(Trace):
    """Columns are found by name, so both layouts read alike; all models and log types are taken.

    A row with 0 response tokens is a request that failed. It is dropped, or with `keep_failed` taken with
    one output token, since its prompt was computed. A row without a prompt is dropped either way.
    """

    def __init__(self, path: Path, *, keep_failed: bool = False) -> None:
        super().__init__(str(path), "time stamps in seconds, lengths in tokens as recorded")
        self._path = path
        self._keep_failed = keep_failed

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        clock = Clock(report)
        for stamp_text, prompt_text, output_text, total_text in csv_rows(self._path, _COLUMNS, report):
            try:
                prompt, output, total = int(prompt_text), int(output_text), int(total_text)
                stamp = float(stamp_text)
            except ValueError:
                report.drop(Drop.NOT_A_NUMBER)
                continue
            if fault := self._fault(stamp, prompt, output):
                report.drop(fault)
                continue
            if total != prompt + output:
                report.notes[Note.WRONG_TOTAL] += 1
            if not output:
                report.notes[Note.FAILED] += 1
                output = 1
            request = TraceRequest(clock.read(stamp), prompt, output)
            report.keep(request)
            yield request

    def _fault(self, stamp: float, prompt: int, output: int) -> Drop | None:
        if prompt > 0 and output > 0 and math.isfinite(stamp):
            return None
        if not math.isfinite(stamp):
            return Drop.NOT_A_NUMBER
        if prompt < 0 or output < 0:
            return Drop.NEGATIVE
        if not prompt:
            return Drop.NO_PROMPT
        return None if self._keep_failed else Drop.FAILED
