"""The two files that a job writes: answers, and failures.

They grow under `.part` names, line by line and in input order, and get their names when the job has
answered every line: a file of that name is whole. What a job that was stopped had written stays in the
`.part` files.
"""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from corun_pd.batch.job import Answer
from corun_pd.errors import SetupError

__all__ = ["OutputFiles", "errors_path"]


def errors_path(out: Path) -> Path:
    """Where failures go unless told otherwise: `out.errors.jsonl` beside `out.jsonl`."""
    return out.with_name(out.name.removesuffix(".jsonl") + ".errors.jsonl")


class OutputFiles:
    """Both files, open within `with`. The error file is written, empty, also when no line failed."""

    def __init__(self, out: Path, errors: Path | None = None) -> None:
        self.out = _Sink(out)
        self.errors = _Sink(errors or errors_path(out))
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.out)
            stack.enter_context(self.errors)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, answer: Answer) -> None:
        """Adds a line; it has left this process when the call returns."""
        (self.errors if answer.failed else self.out).write(answer.data)

    def finish(self) -> None:
        """Gives both files their names. Called once every line has its answer."""
        self._open.close()
        for sink in (self.errors, self.out):
            sink.part.replace(sink.path)


class _Sink:
    """A growing file and the SHA-256 of what it holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        self._file: BinaryIO

    @property
    def sha256(self) -> str:
        """Of the bytes written so far, in hex."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Appends, unbuffered."""
        self._file.write(data)
        self._hash.update(data)

    def __enter__(self) -> Self:
        try:
            self._file = self.part.open("wb", buffering=0)
        except OSError as error:
            raise SetupError(f"{self.part}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
