"""The journal of a job: every finished answer, as soon as it is there. The truth about what is done.

It lies beside the output as OUT.journal, and the .part files are made of it. Its frames (`frames.py`):

    HEADER   what the job is: inputs, contract, parameters          once, first
    ANSWER   one finished line: its index, measure and bytes        in the order in which they finished
    CHECKED  every line has been checked; the bad ones are above    once, before the first good line
    RECEIPT  the job is whole; its counts and digests               once, last; then no answers are kept

Policy: a frame has left the process when `append` returns, so killing the process loses nothing that was
recorded. `sync` puts it on the disk; it is called every SYNC_INTERVAL_S, and before the output gets its
name, so that a crash of the machine loses that much work at most. What a stop cut in two is cut off when
the journal is opened again. Lines that failed by accident (500, 504) are not finished: a next run tries
them again.
"""

import json
import os
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

from corun_pd.batch.disk import replace_file
from corun_pd.batch.frames import MAGIC, Frame, pack, read_at, scan, write_all
from corun_pd.batch.line import Json
from corun_pd.batch.reader import RawLine
from corun_pd.batch.report import Measure
from corun_pd.errors import ContractMismatch, SetupError

__all__ = ["SYNC_INTERVAL_S", "Checked", "Entry", "Journal", "Receipt", "journal_path"]

#: Between two syncs, in seconds.
SYNC_INTERVAL_S: Final = 5.0

#: What stands before an answer's bytes: its line's index and CRC-32, and the fields of its Measure.
_ENTRY: Final = struct.Struct("<QIHIIQff")


class Kind(IntEnum):
    """What a frame holds."""

    HEADER = 1
    ANSWER = 2
    CHECKED = 3
    RECEIPT = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished line: its index, the CRC-32 of what it said, and its answer."""

    index: int
    crc: int
    measure: Measure
    data: bytes

    def head(self) -> bytes:
        """What stands before the data."""
        measure = self.measure
        return _ENTRY.pack(
            self.index,
            self.crc,
            measure.status,
            measure.prompt_tokens,
            measure.completion_tokens,
            measure.kv_moved_bytes,
            measure.first_token_s,
            measure.per_token_s,
        )

    @classmethod
    def of(cls, frame: Frame) -> Self:
        """That of an answer's frame."""
        index, crc, *measure = _ENTRY.unpack_from(frame.payload)
        return cls(index, crc, Measure(*measure), frame.payload[_ENTRY.size :])


@dataclass(frozen=True, slots=True)
class Checked:
    """What the check of all lines found."""

    total: int
    refused: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is left of a job that has ended: digests of its files in hex, and `Tally.counts`."""

    output_sha256: str
    errors_sha256: str
    counts: Mapping[str, int]


def journal_path(out: Path) -> Path:
    """`OUT.journal`."""
    return out.with_name(out.name + ".journal")


class Journal:
    """An open journal, for one process (`lock.OutputLock`). Memory: 12 bytes a line.

    `header` is what the job is; `checked` and `receipt` are None until they are recorded; `cut_bytes` is
    how much was torn when it was opened. Methods raise OSError when the disk fails.
    """

    def __init__(self, path: Path, header: Mapping[str, str]) -> None:
        self.path = path
        self.header = header
        self.checked: Checked | None = None
        self.receipt: Receipt | None = None
        self.cut_bytes = 0
        self._fd = -1
        self._end = 0
        self._offsets = array("q")
        self._crcs = array("I")

    @classmethod
    def create(cls, path: Path, header: Mapping[str, str]) -> Self:
        """A new one, in the place of any other. It is there whole, or not at all."""
        data = MAGIC + pack(Kind.HEADER, _json({**header}))
        replace_file(path, data)
        journal = cls(path, header)
        journal._end = len(data)
        journal._fd = os.open(path, os.O_RDWR | os.O_APPEND)
        return journal

    @classmethod
    def open(cls, path: Path, count: Callable[[Measure], None]) -> Self | None:
        """The one that is there, None without one. `count` gets the measure of each finished line.

        A torn end is cut off. So are the refusals of a check that did not come to its end: without
        `checked`, nothing is finished, whatever has been counted.
        """
        if not path.exists():
            return None
        with path.open("rb") as file:
            frames = scan(file)
            first = next(frames, None)
            if first is None or first.kind != Kind.HEADER:
                raise SetupError(f"{path}: has no whole header; remove it to start over")
            journal = cls(path, json.loads(first.payload))
            journal._end = first.end
            for frame in frames:
                journal._take(frame, count)
            journal.cut_bytes = os.fstat(file.fileno()).st_size - journal._end
        if journal.checked is None and journal.receipt is None:
            journal._end = first.end
            journal._offsets = array("q")
        journal._fd = os.open(path, os.O_RDWR | os.O_APPEND)
        os.ftruncate(journal._fd, journal._end)
        return journal

    def require(self, header: Mapping[str, str]) -> None:
        """Raises ContractMismatch that names what differs when the journal is of another job."""
        differences = {
            name: (self.header.get(name, "absent"), header.get(name, "absent"))
            for name in sorted(self.header.keys() | header.keys())
            if self.header.get(name) != header.get(name)
        }
        if differences:
            what = (
                f"{self.path} is the journal of another job; --accept-new-contract drops it and starts over"
            )
            raise ContractMismatch(what, differences)

    def is_finished(self, index: int) -> bool:
        """Whether that line has its answer."""
        return index < len(self._offsets) and self._offsets[index] > 0

    def has(self, line: RawLine) -> bool:
        """`is_finished`. Raises SetupError when the answer is that of another line's content."""
        if not self.is_finished(line.index):
            return False
        if self._crcs[line.index] != line.crc:
            what = (
                f"{self.path}: has an answer to other content of line {line.number}, so the input was changed"
            )
            raise SetupError(f"{what} while the job ran; remove the journal to start over")
        return True

    def append(self, *entries: Entry) -> None:
        """Records answers, all with one write."""
        places, data = [], bytearray()
        for entry in entries:
            places.append((entry.index, entry.crc, self._end + len(data)))
            data += pack(Kind.ANSWER, entry.head() + entry.data)
        self._write(data)
        for place in places:
            self._put(*place)

    def mark_checked(self, checked: Checked) -> None:
        """Records that all lines have been checked."""
        self._write(pack(Kind.CHECKED, _json(asdict(checked))))
        self.checked = checked

    def read(self, index: int) -> Entry:
        """A finished line's answer."""
        frame = read_at(self._fd, self._offsets[index])
        if frame is None:
            raise SetupError(
                f"{self.path}: is damaged at byte {self._offsets[index]}; start again to repair it"
            )
        return Entry.of(frame)

    def sync(self) -> None:
        """Puts all that was recorded on the disk. May run in a thread of its own."""
        os.fdatasync(self._fd)

    def seal(self, receipt: Receipt) -> None:
        """Leaves a receipt in the place of the answers, which are in the output by now."""
        frames = pack(Kind.HEADER, _json({**self.header})) + pack(Kind.RECEIPT, _json(asdict(receipt)))
        replace_file(self.path, MAGIC + frames)
        self.receipt = receipt

    def close(self) -> None:
        """Lets go of the file; removes it, when no line of it can have been run."""
        os.close(self._fd)
        if self.checked is None and self.receipt is None:
            self.path.unlink()

    def _take(self, frame: Frame, count: Callable[[Measure], None]) -> None:
        self._end = frame.end
        if frame.kind == Kind.CHECKED:
            self.checked = Checked(**json.loads(frame.payload))
        elif frame.kind == Kind.RECEIPT:
            self.receipt = Receipt(**json.loads(frame.payload))
        elif frame.kind == Kind.ANSWER and not (entry := Entry.of(frame)).measure.is_accident:
            self._put(entry.index, entry.crc, frame.offset)
            count(entry.measure)

    def _put(self, index: int, crc: int, offset: int) -> None:
        if (missing := index + 1 - len(self._offsets)) > 0:
            count = max(missing, 1024)
            self._offsets.extend(array("q", [0]) * count)
            self._crcs.extend(array("I", [0]) * count)
        self._offsets[index] = offset
        self._crcs[index] = crc

    def _write(self, data: bytes | bytearray) -> None:
        write_all(self._fd, data)
        self._end += len(data)


def _json(value: Mapping[str, Json]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
