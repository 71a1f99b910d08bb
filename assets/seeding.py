"""Finding files that are no assets yet, on a thread of its own (`/api/assets/seed`)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import folder_paths
from assets.store import AssetStore

log = logging.getLogger(__name__)

ROOTS = ("models", "input", "output")
MOST_ERRORS = 100


class AlreadyRunning(Exception):
    """A scan is in progress."""


def files_of(root: str) -> Iterator[tuple[str, list[str]]]:
    """(path, tags) of every file below a root."""
    if root == "models":
        for name, (paths, extensions) in list(folder_paths.folder_names_and_paths.items()):
            if name in ("configs", "custom_nodes", "datasets"):
                continue
            for folder in paths:
                found, _ = folder_paths.recursive_search(folder, excluded_dir_names=[".git"])
                for file in folder_paths.filter_files_extensions(found, extensions):
                    yield os.path.join(folder, file), ["models", name]
        return
    folder = folder_paths.get_directory_by_type(root) or ""
    for file in folder_paths.recursive_search(folder)[0]:
        if not os.path.basename(file).startswith("."):
            yield os.path.join(folder, file), [root]


class Seeder:
    """At most one scan at a time. `announce` gets event names and data for all connections."""

    def __init__(self, store: AssetStore, with_hash: bool, announce: Callable[[str, Any], None]):
        self._store = store
        self._with_hash = with_hash
        self._announce = announce
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._state = "idle"
        self._progress = {"scanned": 0, "created": 0, "skipped": 0}
        self._errors: list[str] = []

    def status(self) -> dict[str, Any]:
        """`{"state": idle | running | cancelling, "progress", "errors"}`."""
        with self._lock:
            return {"state": self._state, "progress": dict(self._progress), "errors": list(self._errors)}

    def start(self, roots: list[str]) -> None:
        """Begin a scan. Raises AlreadyRunning."""
        with self._lock:
            if self._state != "idle":
                raise AlreadyRunning
            self._state, self._errors = "running", []
            self._progress = dict.fromkeys(self._progress, 0)
            self._cancelled.clear()
            self._thread = threading.Thread(target=self._run, args=(roots,), name="asset-scan", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Block until the scan in progress, if any, has ended."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def cancel(self) -> bool:
        """Ask the scan to stop; False if there is none."""
        with self._lock:
            if self._state == "idle":
                return False
            self._state = "cancelling"
            self._cancelled.set()
            return True

    def _run(self, roots: list[str]) -> None:
        self._announce("assets.seed.started", {"roots": roots})
        try:
            for root in roots:
                for path, tags in files_of(root):
                    if self._cancelled.is_set():
                        return
                    self._add(path, tags)
        except Exception as error:
            log.exception("the asset scan failed")
            self._errors.append(str(error))
        finally:
            with self._lock:
                self._state = "idle"
            ended = "cancelled" if self._cancelled.is_set() else "completed"
            self._announce(f"assets.seed.{ended}", dict(self._progress))

    def _add(self, path: str, tags: list[str]) -> None:
        self._progress["scanned"] += 1
        if self._store.knows_path(path):
            self._progress["skipped"] += 1
            return
        try:
            self._store.add_file(path, tags=tags, with_hash=self._with_hash)
            self._progress["created"] += 1
        except OSError as error:
            if len(self._errors) < MOST_ERRORS:
                self._errors.append(f"{os.path.basename(path)}: {error.strerror or error}")
