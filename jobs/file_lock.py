"""A file that one process holds for as long as it lives, however it ends."""

from __future__ import annotations

import contextlib
import os

from comfy_execution import forks


class FileLock:
    """Tries at once to hold the file at `path`; `taken` tells whether it does. Raises OSError if it cannot be made."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        forks.keep_from_children(self)  # a child that outlives us would hold it on
        self.taken = self._take()
        if not self.taken:
            self.release()

    def _take(self) -> bool:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            try:
                msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                return False
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """The descriptor of the file, -1 once it is released."""
        return self._descriptor

    def release(self) -> None:
        """Let others have it. The file stays: removing it would race with one who just opens it."""
        self.taken = False
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1
