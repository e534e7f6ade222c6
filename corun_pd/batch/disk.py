"""Files that are there whole or not at all, and what the disk says when it fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corun_pd.errors import SetupError

__all__ = ["disk_errors", "replace_file", "sync_folder"]


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns OSError into a SetupError that names the file, `path` where the system does not say which."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"{error.filename or path}: {error.strerror}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file so that, whenever the machine stops, the path has it whole or what was there before."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Puts the names in `path`'s folder on the disk."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
