"""The physical lines of a batch file, one at a time.

UTF-8, with or without a byte order mark; LF or CRLF; blank lines are counted and left out; the last
line may lack its end. Other encodings and compressed files are refused by name. Memory is bounded by
the longest line that is allowed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from corun_pd.errors import SetupError

__all__ = ["MAX_LINE_BYTES", "RawLine", "Reader"]

#: The longest line, its end not counted. Whatever it says fits in one message (MAX_MESSAGE_BYTES).
MAX_LINE_BYTES: Final = 16 << 20

#: How much of a longer line is kept, to find out whose it is.
HEAD_BYTES: Final = 64 << 10

_SIGNATURES: Final = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
)


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line that is not blank, by its physical number from 1. `data` is its head when it is too long."""

    number: int
    data: bytes
    is_too_long: bool = False


class Reader:
    """One pass over a file. `sha256` is that of the bytes read so far, of the whole file at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """In hex."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[RawLine]:
        """Raises SetupError, naming the file, when it cannot be read or is not UTF-8 text."""
        try:
            with self._path.open("rb") as file:
                yield from self._lines(file)
        except OSError as error:
            raise SetupError(f"{self._path}: {error.strerror}") from error

    def _lines(self, file: BinaryIO) -> Iterator[RawLine]:
        number = 0
        while data := self._read(file, MAX_LINE_BYTES + 2):
            number += 1
            if number == 1:
                self._refuse_other_encodings(data[:8])
                data = data.removeprefix(b"\xef\xbb\xbf")
            is_too_long = len(data.rstrip(b"\r\n")) > MAX_LINE_BYTES
            if is_too_long:
                end, data = data[-1:], data[:HEAD_BYTES]
                while end and end != b"\n":
                    end = self._read(file, 1 << 20)[-1:]
            if data := data.strip(b" \t\r\n"):
                yield RawLine(number, data, is_too_long)

    def _read(self, file: BinaryIO, limit: int) -> bytes:
        data = file.readline(limit)
        self._hash.update(data)
        return data

    def _refuse_other_encodings(self, head: bytes) -> None:
        found = next((name for signature, name in _SIGNATURES if head.startswith(signature)), None)
        if found is None and b"\0" in head[:2]:
            found = "UTF-16"  # without a mark: every other byte of its ASCII is zero
        if found is not None:
            raise SetupError(f"{self._path}: is {found}; a batch file is UTF-8 text, one JSON object a line")
