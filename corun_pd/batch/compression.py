"""A file's content, whether it is stored plain, as gzip or as zstd. Its first bytes tell, not its name."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from corun_pd.errors import SetupError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["open_content"]

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"


@contextmanager
def open_content(path: Path) -> Iterator[BinaryIO]:
    """The content, decompressed as it is read.

    Raises SetupError that names the file when it cannot be read, or is cut off or damaged in the middle.
    """
    try:
        with path.open("rb") as file:
            head = file.peek(4)
            if head.startswith(GZIP):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield cast(BinaryIO, unpacked)
            elif head.startswith(ZSTD):
                with zstd.ZstdFile(file) as unpacked_zstd:
                    yield cast(BinaryIO, unpacked_zstd)
            else:
                yield file
    except (gzip.BadGzipFile, zlib.error, zstd.ZstdError, EOFError) as error:
        raise SetupError(f"{path}: is damaged or cut off: {error}") from error
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error
