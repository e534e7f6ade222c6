"""One role as a child process: its log, its end, and the end of everything that it started.

A role runs in a session of its own, so that a Ctrl-C in the terminal reaches the supervisor alone. Its
standard input is its lifeline: the supervisor holds the other end and never writes, and a role that reads
the end of it kills its own process group (`cluster.lifeline`). So nothing outlives a supervisor, even one
that is killed.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from corun_pd.errors import SetupError

__all__ = ["RoleProcess", "last_lines"]

TAIL_LINES = 8
TAIL_BYTES = 16 << 10


@dataclass(frozen=True, eq=False)
class RoleProcess:
    """A started role. `name` is its role and number, as `prefill-0`; `log` gets its stdout and stderr."""

    name: str
    log: Path
    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], log: Path) -> Self:
        """Starts `argv`. Raises SetupError when the log cannot be written or the program not be started."""
        try:
            with log.open("wb") as sink:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=sink,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise SetupError(f"{name} cannot be started: {error}", role=name) from error
        return cls(name, log, process)

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session and group too."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    async def wait(self) -> int:
        """Its exit code once it ends; negative for the signal that ended it."""
        return await self.process.wait()

    def ended(self) -> str:
        """How it ended, for people."""
        code = self.process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def tail(self) -> str:
        """The last lines of its log, indented; names the file."""
        return last_lines(self.log)

    async def stop(self, grace_s: float) -> None:
        """Asks it to end, waits `grace_s` seconds, then kills it and all that it started."""
        started = self._descendants()
        if self.is_running and grace_s > 0:
            self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_s)
        self._kill_group()
        # What left the group on purpose: a session of its own does not outlive the role either.
        for child in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        await self.process.wait()

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def last_lines(log: Path) -> str:
    """The last lines of a role's log for a message, indented; names the file."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, os.fstat(source.fileno()).st_size - TAIL_BYTES))
            lines = source.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        lines = []
    if not lines:
        return f"{log} is empty"
    return "\n  ".join([f"the last lines of {log}:", *lines])
