"""Frames of an append-only file: what a stop at any instant leaves is whole frames and a torn end.

    magic | frame | frame | ...        frame = CRC-32 of the rest, payload length, kind, payload

Little-endian. A frame is whole when its length fits the file and its CRC fits its bytes.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from corun_pd.errors import SetupError

__all__ = ["MAGIC", "Frame", "pack", "read_at", "scan", "write_all"]

#: The number counts the format's versions. History:
#: 1  the first.
#: 2  the same frames; answers are compact JSON, and seeds are made of another canonical form of lines.
MAGIC: Final = b"corun-pd journal 2\n"

_HEAD: Final = struct.Struct("<IIB")
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame that begins at `offset` of its file."""

    offset: int
    kind: int
    payload: bytes

    @property
    def end(self) -> int:
        """The offset of the next one."""
        return self.offset + _HEAD.size + len(self.payload)


def pack(kind: int, payload: bytes) -> bytes:
    """A frame's bytes."""
    head = _HEAD.pack(0, len(payload), kind)[_CRC_BYTES:]
    return zlib.crc32(payload, zlib.crc32(head)).to_bytes(_CRC_BYTES, "little") + head + payload


def scan(file: BinaryIO) -> Iterator[Frame]:
    """The whole frames from the file's beginning up to the first that is not. SetupError: not ours."""
    if file.read(len(MAGIC)) != MAGIC:
        raise SetupError(f"{file.name}: is not a journal that this version wrote; remove it to start over")
    offset = len(MAGIC)
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        # A torn head may tell any length; what is read is bounded by what is there.
        frame = _check(offset, head, file.read(_HEAD.unpack(head)[1]))
        if frame is None:
            return
        yield frame
        offset = frame.end


def read_at(fd: int, offset: int) -> Frame | None:
    """The frame there; None when it is not whole."""
    head = os.pread(fd, _HEAD.size, offset)
    if len(head) < _HEAD.size:
        return None
    return _check(offset, head, os.pread(fd, _HEAD.unpack(head)[1], offset + _HEAD.size))


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Writes all of it, however little the system takes at once. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _check(offset: int, head: bytes, payload: bytes) -> Frame | None:
    crc, length, kind = _HEAD.unpack(head)
    if len(payload) < length or zlib.crc32(payload, zlib.crc32(head[_CRC_BYTES:])) != crc:
        return None
    return Frame(offset, kind, payload)
