"""A job's progress: a bar on a terminal, a line now and then in a log."""

import time
from types import TracebackType
from typing import Final, Self

import rich.progress
from rich.console import Console

from corun_pd.batch import Tally

__all__ = ["Progress"]

#: Between two lines in a log, and two states of a bar.
LOG_INTERVAL_S: Final = 10.0
BAR_INTERVAL_S: Final = 0.1


class Progress:
    """Shows a tally while it grows."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._is_terminal = console.is_terminal
        self._next_s = time.monotonic() + self._interval_s
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("", total=tally.total)

    def update(self) -> None:
        """Called after each answer."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        if self._is_terminal:
            self._bar.update(self._task, completed=self._tally.answered, description=str(self._tally))
        else:
            self._console.print(str(self._tally), highlight=False)

    @property
    def _interval_s(self) -> float:
        return BAR_INTERVAL_S if self._is_terminal else LOG_INTERVAL_S

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
