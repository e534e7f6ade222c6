"""The physical lines of a batch file, one at a time.

UTF-8, with or without a byte order mark; LF or CRLF; blank lines are counted and left out; the last
line may lack its end. gzip and zstd are unpacked on the way; other encodings are refused by name. Memory
is bounded by the longest line that is allowed.
"""

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from corun_pd.batch.compression import open_content
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
    (b"\x1f\x8b", "gzip within gzip or zstd"),
    (b"\x28\xb5\x2f\xfd", "zstd within gzip or zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
)


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line that is not blank. `data` is its head when it is too long.

    `number` is physical, from 1, and `index` counts from 0 the lines that are not blank; both run on
    through all files of a job.
    """

    index: int
    number: int
    data: bytes
    is_too_long: bool = False

    @property
    def crc(self) -> int:
        """CRC-32 of `data`: ties a finished line to what it said."""
        return zlib.crc32(self.data)


class Reader:
    """One pass over a file, whose first line has `index` and `number`.

    `sha256` is that of the content read so far, of the whole content at the end; of what is unpacked,
    when the file is packed.
    """

    def __init__(self, path: Path, index: int = 0, number: int = 1) -> None:
        self._path = path
        self._index = index
        self._first = number
        self._hash = hashlib.sha256()
        self.line_count = 0

    @property
    def sha256(self) -> str:
        """In hex."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[RawLine]:
        """Raises SetupError, naming the file, when it cannot be read or is not UTF-8 text."""
        with open_content(self._path) as file:
            yield from self._lines(file)

    def _lines(self, file: BinaryIO) -> Iterator[RawLine]:
        index, number = self._index, self._first - 1
        while data := self._read(file, MAX_LINE_BYTES + 2):
            number += 1
            self.line_count += 1
            if number == self._first:
                self._refuse_other_encodings(data[:8])
                data = data.removeprefix(b"\xef\xbb\xbf")
            is_too_long = len(data.rstrip(b"\r\n")) > MAX_LINE_BYTES
            if is_too_long:
                end, data = data[-1:], data[:HEAD_BYTES]
                while end and end != b"\n":
                    end = self._read(file, 1 << 20)[-1:]
            if data := data.strip(b" \t\r\n"):
                yield RawLine(index, number, data, is_too_long)
                index += 1

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
