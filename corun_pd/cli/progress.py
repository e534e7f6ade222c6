"""A job's progress: a bar on a terminal, a line now and then in a log."""

import time
from types import TracebackType
from typing import Final, Self

import rich.progress
from rich.console import Console

from corun_pd.batch import Tally

__all__ = ["Progress"]

#: Between two lines in a log.
LOG_INTERVAL_S: Final = 10.0


class Progress:
    """Shows a tally while it grows."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._next_line_s = time.monotonic() + LOG_INTERVAL_S
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=tally.total)

    def update(self) -> None:
        """Called after each answer."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._tally.answered, description=str(self._tally))
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + LOG_INTERVAL_S
            self._console.print(str(self._tally), highlight=False)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
