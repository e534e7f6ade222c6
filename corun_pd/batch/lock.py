"""Keeps two processes apart that would write one output."""

import fcntl
import os
import platform
from pathlib import Path
from types import TracebackType
from typing import Self

from corun_pd.errors import SetupError

__all__ = ["OutputLock"]


class OutputLock:
    """Held within `with`, on `OUT.lock`. The system lets go of it when the process ends, however it does.

    Entering raises SetupError that names the holder's process and host while there is one.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._path = out.with_name(out.name + ".lock")
        self._fd = -1

    def __enter__(self) -> Self:
        while not self._try():
            os.close(self._fd)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def _try(self) -> bool:
        """Whether the lock that was got is that of the path: the last holder may have just removed it."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 256, 0).decode(errors="replace") or "a process that has just begun"
            os.close(self._fd)
            raise SetupError(f"{self._out}: is being written by {holder}") from None
        try:
            return os.stat(self._path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False
