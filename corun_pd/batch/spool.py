"""Standard input as a file: a job reads its input twice, and again when it is started again."""

import hashlib
import shutil
from pathlib import Path
from typing import BinaryIO

from corun_pd.errors import SetupError

__all__ = ["spool", "spool_path"]


def spool_path(out: Path) -> Path:
    """`OUT.stdin`."""
    return out.with_name(out.name + ".stdin")


def spool(stream: BinaryIO, out: Path, *, start_over: bool) -> Path:
    """Reads the stream to its end into OUT.stdin, and returns that. Called while the output is locked.

    The spool stays until the job has ended. When there is one, the stream must be empty or the same, so a
    job is started again with `-i -` and `</dev/null`. Raises SetupError for another one, unless
    `start_over`.
    """
    path = spool_path(out)
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        is_empty = file.tell() == 0
    if not path.exists() or (start_over and not is_empty):
        return new.replace(path)
    if not is_empty and _digest(path) != _digest(new):
        problem = f"{path}: standard input is another than that of the job that was stopped"
        raise SetupError(f"{problem}; --accept-new-contract drops that job and starts over")
    new.unlink()
    return path


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
