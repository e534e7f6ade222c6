"""Azure LLM inference traces (https://github.com/Azure/AzurePublicDataset): 2023, 2024 and multimodal."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from corun_pd.planner.traces.clock import Clock
from corun_pd.planner.traces.files import csv_rows
from corun_pd.planner.traces.report import Drop, Note, TraceReport
from corun_pd.planner.traces.request import TraceRequest
from corun_pd.planner.traces.trace import Trace

__all__ = ["Azure"]

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MICROSECOND = timedelta(microseconds=1)


class Azure(Trace):
    """Wall-clock stamps with or without an offset, read to the microsecond; prompts hold no prefix data.

    `multimodal` reads the column NumImages, too: rows with images are noted, their tokens taken as given.
    """

    def __init__(self, path: Path, *, multimodal: bool = False) -> None:
        super().__init__(str(path), "time stamps of a wall clock, lengths in tokens as recorded")
        self._path = path
        # Without images the third count stands in for theirs, and is never looked at.
        self._columns = (*_COLUMNS, "NumImages" if multimodal else "GeneratedTokens")
        self._multimodal = multimodal

    def _read(self, report: TraceReport) -> Iterator[TraceRequest]:
        clock = Clock(report, ticks_per_s=1_000_000)
        start: datetime | None = None
        for stamp_text, prompt_text, output_text, images_text in csv_rows(self._path, self._columns, report):
            try:
                stamp = datetime.fromisoformat(stamp_text)
                prompt, output, images = int(prompt_text), int(output_text), int(images_text)
                elapsed_us = (stamp - (start or stamp)) // _MICROSECOND
            except (ValueError, TypeError):  # TypeError: an offset in one row and none in another
                report.drop(Drop.NOT_A_NUMBER)
                continue
            if prompt <= 0 or output <= 0:
                report.drop(_fault(prompt, output))
                continue
            start = start or stamp
            if images and self._multimodal:
                report.notes[Note.IMAGES] += 1
            request = TraceRequest(clock.read(elapsed_us), prompt, output)
            report.keep(request)
            yield request


def _fault(prompt: int, output: int) -> Drop:
    if prompt < 0 or output < 0:
        return Drop.NEGATIVE
    return Drop.FAILED if prompt else Drop.NO_PROMPT
