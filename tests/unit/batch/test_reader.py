"""Physical lines: encodings, line ends, limits (C15, C18)."""

import gzip
import hashlib
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corun_pd.batch.reader import MAX_LINE_BYTES, Reader
from corun_pd.errors import SetupError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def read(path: Path, data: bytes) -> list[tuple[int, bytes]]:
    """What a reader makes of `data`."""
    path.write_bytes(data)
    return [(line.number, line.data) for line in Reader(path)]


def test_a_windows_file_keeps_its_records_and_physical_numbers(tmp_path: Path) -> None:
    """Byte order mark, CRLF, blank lines, no newline at the end: 4 in, 4 out."""
    data = b"\xef\xbb\xbf{1}\r\n{2}\r\n\r\n  \t\r\n{5}\r\n{6}"
    assert read(tmp_path / "in", data) == [(1, b"{1}"), (2, b"{2}"), (5, b"{5}"), (6, b"{6}")]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-be"), "UTF-16"),
        ('{"a": 1}'.encode("utf-32"), "UTF-32"),
        (gzip.compress(gzip.compress(b"{}")), "gzip within gzip"),
        (b"PK\x03\x04 rest", "zip"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_other_encodings_are_refused_by_name(tmp_path: Path, data: bytes, name: str) -> None:
    """One line that says what the file is, not a parse error at its first byte."""
    with pytest.raises(SetupError, match=f"is {name}"):
        read(tmp_path / "in", data)


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_packed_files_are_what_they_hold(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """By their first bytes, whatever their name; parts that were packed one by one are one content."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(pack(b"{1}\n{2") + pack(b"}\n"))
    reader = Reader(path)
    assert [line.data for line in reader] == [b"{1}", b"{2}"]
    assert reader.sha256 == hashlib.sha256(b"{1}\n{2}\n").hexdigest()


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data + data[:20], lambda data: data + b"x" * 9]
)
def test_a_packed_file_that_is_cut_off_is_no_shorter_file(tmp_path: Path, pack: Any, damage: Any) -> None:
    """A download that broke off must not pass for a smaller job."""
    path = tmp_path / "in.gz"
    path.write_bytes(damage(pack(b"{1}\n" * 999)))
    with pytest.raises(SetupError, match=r"in\.gz: is damaged or cut off"):
        list(Reader(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing files and folders."""
    with pytest.raises(SetupError, match="absent"):
        list(Reader(tmp_path / "absent"))
    with pytest.raises(SetupError, match=str(tmp_path)):
        list(Reader(tmp_path))


def test_the_longest_line_is_taken_and_one_byte_more_is_not(tmp_path: Path) -> None:
    """The limit counts the line without its end, and the next line is whole."""
    longest = b"x" * MAX_LINE_BYTES
    path = tmp_path / "in"
    path.write_bytes(longest + b"\r\n" + longest + b"y\nnext\n" + longest + b"yyy")
    lines = list(Reader(path))
    assert [(line.number, line.is_too_long) for line in lines] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
    ]
    assert lines[0].data == longest
    assert lines[2].data == b"next"


def test_memory_is_bounded_by_the_line_limit_and_not_by_the_file(tmp_path: Path) -> None:
    """A line of 200 MB is skipped in pieces; the digest is that of the whole file."""
    path = tmp_path / "in"
    piece = b"x" * (1 << 20)
    with path.open("wb") as file:
        for _ in range(200):
            file.write(piece)
        file.write(b"\n{}\n")
    reader = Reader(path)
    tracemalloc.start()
    try:
        numbers = [line.number for line in reader]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert numbers == [1, 2]
    assert peak < 4 * MAX_LINE_BYTES
    with path.open("rb") as file:
        assert reader.sha256 == hashlib.file_digest(file, "sha256").hexdigest()
