"""Keeping the output and temp folders within limits of age and size (`--keep-output`, `--keep-temp`)."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

EVERY = 300.0  # seconds between two looks
GRACE = 600.0  # seconds for which a new file is kept whatever the limits: somebody may be about to fetch it
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"mb": 10**6, "gb": 10**9, "tb": 10**12}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


@dataclass(frozen=True)
class Limits:
    """age: seconds since a file was last written; size: bytes of all files. None: no limit."""

    age: float | None = None
    size: float | None = None

    @classmethod
    def read(cls, text: str) -> Limits:
        """`30d`, `20GB` or `30d,20GB`. Raises ValueError."""
        found: dict[str, float] = {}
        for part in text.lower().split(","):
            match = _PART.fullmatch(part.strip())
            unit = match[2] if match else ""
            if unit in _SECONDS:
                found["age"] = float(match[1]) * _SECONDS[unit]
            elif unit in _BYTES:
                found["size"] = float(match[1]) * _BYTES[unit]
            else:
                raise ValueError(f"{text!r} is no age (12h, 30d), no size (500MB, 20GB), nor both with a comma")
        return cls(**found)


def trim(folder: str, limits: Limits, deleted: Callable[[str], object] = lambda path: None) -> int:
    """Delete the files of a folder that are too old, then the oldest of the rest until they are small enough.

    Hidden files stay, links are neither followed nor counted, folders stay.

    Args:
        deleted: called with the path of each file that is gone.

    Returns:
        How many files were deleted.
    """
    now = time.time()
    files = []  # (time of the last write, bytes, path)
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name.startswith(".") or os.path.islink(path):
                continue
            try:
                status = os.stat(path)
            except OSError:
                continue  # gone meanwhile
            files.append((status.st_mtime, status.st_size, path))
    files.sort()
    total, count = sum(size for _, size, _ in files), 0
    for written, size, path in files:
        too_old = limits.age is not None and now - written > limits.age
        too_much = limits.size is not None and total > limits.size
        if not (too_old or too_much) or now - written < GRACE:
            break  # so are all that follow, which are newer
        try:
            os.remove(path)
        except OSError as error:
            log.warning("%s is not deleted: %s", path, error.strerror)
            continue
        total -= size
        count += 1
        deleted(path)
    return count


class Janitor:
    """Looks after folders on a thread of its own, now and then.

    Args:
        folders: limits by folder.
        deleted: called with the path of each deleted file.
    """

    def __init__(self, folders: dict[str, Limits], deleted: Callable[[str], object] = lambda path: None):
        self._folders = folders
        self._deleted = deleted
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin, with a first look at once."""
        if self._folders:
            threading.Thread(target=self._work, name="file-janitor", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def look(self) -> None:
        """Bring every folder within its limits."""
        for folder, limits in self._folders.items():
            try:
                count = trim(folder, limits, self._deleted)
            except Exception:
                log.exception("%s cannot be looked after", folder)
            else:
                if count:
                    log.info("%d files of %s are deleted: beyond its limits", count, folder)

    def _work(self) -> None:
        while True:
            self.look()
            if self._stopped.wait(EVERY):
                return
