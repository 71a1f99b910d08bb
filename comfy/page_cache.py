"""Reading files ahead of their use, into the system's page cache: a mapped weight file is then there without waiting.

Nothing is kept by this process: the kernel drops the pages when somebody needs the memory. No torch here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import BinaryIO

from comfy.system_memory import system_memory

CHUNK = 16 * 1024**2
# Free RAM that reading ahead never touches: a share of all, and at least so much.
SPARED_SHARE = 0.1
SPARED_BYTES = 1024**3


def room_for_pages() -> int:
    """Bytes that may be read ahead now without pressing anybody."""
    memory = system_memory()
    return max(0, memory.available - max(int(SPARED_SHARE * memory.total), SPARED_BYTES))


def read_ahead(path: str, stopped: Callable[[], bool] = lambda: False, room: Callable[[], int] = room_for_pages) -> int:
    """Bring a file into the page cache. Returns the bytes read: fewer than the file has if `stopped` says so, or if
    `room` (bytes of RAM that may be taken) would not hold all of it.

    Raises OSError when the file cannot be read.
    """
    size = os.path.getsize(path)
    if size > room():
        return 0
    done = 0
    buffer = bytearray(min(CHUNK, max(size, 1)))
    with open(path, "rb", buffering=0) as file:
        while done < size and not stopped() and room() > 0:
            _announce(file, done + CHUNK)
            count = file.readinto(buffer)
            if not count:
                break
            done += count
    return done


def forget(path: str) -> None:
    """Ask the system to drop the file's pages, as if it had not been read for long; for measurements."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _announce(file: BinaryIO, offset: int) -> None:
    """The next chunk will be wanted soon: the disk may begin while this one is copied."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), offset, CHUNK, os.POSIX_FADV_WILLNEED)
