"""Files of traces: rows of a CSV by column name, lines and items of JSON; plain or gzip.

Memory is bounded by the longest row. A Git LFS pointer in the place of the data is named as such.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final, cast

import orjson

from corun_pd.errors import SetupError
from corun_pd.planner.traces.report import Drop, TraceReport

__all__ = ["Json", "csv_rows", "json_rows"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_LFS_POINTER: Final = b"version https://git-lfs"
_READ_CHARACTERS: Final = 1 << 20

#: The longest item of a JSON array. A broken item reads on to this before it is refused.
_MAX_ITEM_CHARACTERS: Final = 64 << 20

_BETWEEN: Final = re.compile(r"[\s,]*")


def csv_rows(path: Path, names: Sequence[str], report: TraceReport) -> Iterator[tuple[str, ...]]:
    """The named columns of each row, wherever they stand; two or more. Short rows are dropped.

    Raises SetupError when a column is missing.
    """
    with _translated(path), _open(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        if missing := [name for name in names if name not in header]:
            raise SetupError(f"{path}: no column {missing[0]!r}; it has {', '.join(header) or 'none'}")
        pick = itemgetter(*(header.index(name) for name in names))
        for row in rows:
            try:
                cells = pick(row)
            except IndexError:
                if row:
                    report.drop(Drop.SHORT)
                continue
            yield cells


def json_rows(path: Path, report: TraceReport) -> Iterator[dict[str, Json]]:
    """The objects of a file with one a line, or with one array of them. Other values are dropped."""
    with _translated(path), _open(path) as file:
        head = file.peek(64)[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
        rows = _items(path, file) if head.startswith(b"[") else _lines(file)
        for row in rows:
            if isinstance(row, dict):
                yield row
            else:
                report.drop(Drop.NOT_JSON)


def _lines(file: BinaryIO) -> Iterator[Json]:
    """A value a line, blank lines left out; None for a line that is not JSON."""
    for number, line in enumerate(file):
        text = (line if number else line.removeprefix(b"\xef\xbb\xbf")).strip()
        if not text:
            continue
        try:
            yield orjson.loads(text)
        except orjson.JSONDecodeError:
            yield None


def _items(path: Path, file: BinaryIO) -> Iterator[Json]:
    """The items of one array, decoded as they are read. Raises SetupError where it is broken."""
    text = io.TextIOWrapper(file, "utf-8-sig")
    decoder = json.JSONDecoder()
    window = text.read(_READ_CHARACTERS).lstrip().removeprefix("[")
    start = 0
    while True:
        start = _BETWEEN.match(window, start).end()  # type: ignore[union-attr] # matches nothing, too
        if window.startswith("]", start):
            return
        try:
            item, end = decoder.raw_decode(window, start)
        except json.JSONDecodeError as error:
            more = text.read(max(_READ_CHARACTERS, len(window) - start))
            if not more or len(window) - start > _MAX_ITEM_CHARACTERS:
                raise SetupError(f"{path}: not a JSON array to its end: {error.msg}") from error
            window, start = window[start:] + more, 0
            continue
        start = end
        yield cast(Json, item)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Faults of the file as SetupError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SetupError(f"{path}: not UTF-8: {error.reason}") from error
    except (EOFError, zlib.error, csv.Error) as error:
        raise SetupError(f"{path}: {error}") from error
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}") from error


def _open(path: Path) -> io.BufferedReader:
    """The file's bytes, unpacked if it is gzip."""
    file = path.open("rb")
    head = file.peek(len(_LFS_POINTER))
    if head.startswith(_LFS_POINTER):
        file.close()
        raise SetupError(f"{path}: is a Git LFS pointer, not the data; fetch it with `git lfs pull`")
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)))
    return file
