"""What a job reads: files, one after the other, or lines that a program makes.

A line is known by its index among all of them, so the answers of several files are in the order of the
files. In messages, and so in answers, a line of the second of two files is "line 7 of input 2": a file's
name would make the answer depend on where the file lies.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from corun_pd.batch.compression import open_content
from corun_pd.batch.line import Json
from corun_pd.batch.reader import RawLine, Reader

__all__ = ["InputFiles", "InputRows", "Inputs", "as_inputs"]

CHUNK_BYTES: Final = 1 << 20


class Inputs(Protocol):
    """Lines in order. `BatchSource` iterates, once for each of its passes."""

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each input's content, in hex, as the last whole pass saw it."""

    def __iter__(self) -> Iterator[RawLine]:
        """A pass. Raises SetupError for what cannot be read."""

    def place(self, number: int) -> str:
        """Where the line of that running number is, for messages."""


class InputFiles:
    """Batch files, plain or packed with gzip or zstd."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.digests: tuple[str, ...] = ()
        self._firsts = [1]

    def __iter__(self) -> Iterator[RawLine]:
        index, firsts, digests = 0, [1], []
        for path in self.paths:
            reader = Reader(path, index, firsts[-1])
            for line in reader:
                index = line.index + 1
                yield line
            firsts.append(firsts[-1] + reader.line_count)
            self._firsts = firsts
            digests.append(reader.sha256)
        self.digests = tuple(digests)

    def read(self) -> Iterator[int]:
        """A pass for `digests` alone: reads the content and yields after each piece, how long it was."""
        digests = []
        for path in self.paths:
            digest = hashlib.sha256()
            with open_content(path) as file:
                while data := file.read(CHUNK_BYTES):
                    digest.update(data)
                    yield len(data)
            digests.append(digest.hexdigest())
        self.digests = tuple(digests)

    def place(self, number: int) -> str:
        """`line 7`, or `line 7 of input 2` when there are several."""
        if len(self.paths) == 1:
            return f"line {number}"
        # While a pass runs, the file that it is in is the last one whose first number is known.
        at = bisect_right(self._firsts, number)
        return f"line {number - self._firsts[at - 1] + 1} of input {at}"

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))


class InputRows:
    """Lines as a program has them: mappings of custom_id, method, url and body."""

    def __init__(self, rows: Iterable[Mapping[str, Json]]) -> None:
        self._rows = rows
        self.digests: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[RawLine]:
        digest = hashlib.sha256()
        for index, row in enumerate(self._rows):
            data = json.dumps(row).encode()
            digest.update(data + b"\n")
            yield RawLine(index, index + 1, data)
        self.digests = (digest.hexdigest(),)

    def place(self, number: int) -> str:
        """`line 7`."""
        return f"line {number}"

    def __str__(self) -> str:
        return "the lines given"


def as_inputs(requests: InputFiles | Path | Iterable[Mapping[str, Json]]) -> Inputs:
    """Files as they are, a path as a file, anything else as rows."""
    if isinstance(requests, Path):
        return InputFiles(requests)
    return requests if isinstance(requests, InputFiles) else InputRows(requests)
