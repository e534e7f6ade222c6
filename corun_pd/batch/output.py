"""The two files that a job writes: answers, and failures.

They grow under `.part` names, line by line and in input order, and get their names when every line has
its answer: a file of that name is whole. What a job that was stopped had written stays in the `.part`
files, for people to read; a next run makes them anew, of the journal.
"""

import hashlib
import io
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from corun_pd.batch.disk import disk_errors, sync_folder
from corun_pd.batch.lock import OutputLock

__all__ = ["OutputFiles", "errors_path"]

BUFFER_BYTES: Final = 1 << 20


def errors_path(out: Path) -> Path:
    """Where failures go unless told otherwise: `out.errors.jsonl` beside `out.jsonl`."""
    return out.with_name(out.name.removesuffix(".jsonl") + ".errors.jsonl")


class OutputFiles:
    """Both files. Within `with`, no other process writes them (SetupError names the one that does).

    The error file is written, empty, also when no line failed. `is_ended` is set by
    the job when no run of it can add anything.
    """

    def __init__(self, out: Path, errors: Path | None = None) -> None:
        self.out = _Sink(out)
        self.errors = _Sink(errors or errors_path(out))
        self.is_ended = False
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with disk_errors(self.out.path), ExitStack() as stack:
            stack.enter_context(OutputLock(self.out.path))
            stack.callback(self._close)
            self._held = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def begin(self) -> None:
        """Opens both, empty."""
        self.out.open()
        self.errors.open()

    def write(self, data: bytes, *, is_failure: bool) -> None:
        """Adds a line."""
        (self.errors if is_failure else self.out).write(data)

    def flush(self) -> None:
        """What was written has left this process when the call returns."""
        self.out.flush()
        self.errors.flush()

    def finish(self) -> None:
        """Gives both files their names, once they are on the disk. Called when every line is there."""
        for sink in (self.errors, self.out):
            sink.sync()
        for sink in (self.errors, self.out):
            sink.part.replace(sink.path)
            sync_folder(sink.path)

    def _close(self) -> None:
        self.out.close()
        self.errors.close()


class _Sink:
    """A growing file and the SHA-256 of what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        self._file: BinaryIO = io.BytesIO()

    @property
    def sha256(self) -> str:
        """Of what was written so far, in hex."""
        return self._hash.hexdigest()

    def open(self) -> None:
        """Begins an empty file."""
        self._file = self.part.open("wb", buffering=BUFFER_BYTES)
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Appends, into the buffer."""
        self._file.write(data)
        self._hash.update(data)

    def flush(self) -> None:
        """Empties the buffer."""
        self._file.flush()

    def sync(self) -> None:
        """Puts it on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Ends writing, under whichever name it has."""
        self._file.close()

    def digest(self) -> str | None:
        """SHA-256 of the whole file of that name, in hex; None when there is none."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
