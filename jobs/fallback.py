"""A store that goes on in memory when the disk does not, and returns to the disk when it works again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from jobs.sqlite_store import MEMORY, SqliteStore
from jobs.store import Change, JobStore, StoreUnavailable

log = logging.getLogger(__name__)

RETRY_SECONDS = 15.0  # between two tries to write to the disk again
MAXIMUM_BACKLOG = 256 * 2**20  # bytes of changes that are kept for that; beyond it memory is all there is
_COPIED = 10_000  # ended jobs that are taken along into memory


class FallbackStore:
    """Has a store on disk and, while that does not work, one in memory.

    Not a JobStore itself: `current` is. `problem` says why it is not the disk; None if it is.

    Args:
        store: the store to use, if it could be opened.
        problem: why it could not.
    """

    def __init__(self, store: JobStore, problem: str | None = None, clock: Callable[[], float] = time.monotonic):
        self.current = store
        self.problem = problem
        self.salvage: Callable[[], Sequence[Change]] = list  # what is known of jobs when the disk cannot even be read
        self._disk: JobStore | None = None  # the one to return to
        self._backlog: list[Change] = []
        self._backlog_size = 0
        self._next_try = 0.0
        self._clock = clock

    def apply(self, changes: Sequence[Change]) -> None:
        """Write changes, wherever that is possible now. One thread at a time; does not raise."""
        try:
            _apply(self.current, changes)
        except StoreUnavailable as error:
            self._leave_disk(str(error))
            _apply(self.current, changes)
        if self._disk is not None:
            self._remember(changes)
            self._try_again()

    def look_after(self) -> None:
        """While nothing is to be written: is the disk still there, or there again? As `apply`."""
        if self._disk is None:
            try:
                self.current.check()
            except StoreUnavailable as error:
                self._leave_disk(str(error))
        self._try_again()

    def give_up(self, problem: str) -> None:
        """Go on in memory, for what was found out while reading. Before anything is written."""
        self._leave_disk(problem)

    def close(self) -> None:
        """Try the disk one last time, and close."""
        if self._disk is not None:
            self._return_to_disk()
        for store in (self.current, self._disk):
            if store is not None:
                try:
                    store.close()
                except StoreUnavailable as error:
                    log.warning("%s", error)

    def _leave_disk(self, problem: str) -> None:
        log.error("%s; the queue goes on in memory and will be lost with this process", problem)
        memory = SqliteStore(MEMORY)
        disk = self.current
        if disk.persistent:
            self._disk = disk
            self._next_try = self._clock() + RETRY_SECONDS
            try:
                memory.copy_from(disk, _COPIED)
            except StoreUnavailable as error:
                log.error("earlier jobs cannot be read either: %s", error)
                memory = SqliteStore(MEMORY)
                _apply(memory, self.salvage())
        self.problem = problem
        self.current = memory

    def _remember(self, changes: Sequence[Change]) -> None:
        self._backlog += changes
        self._backlog_size += sum(
            len(value) for change in changes for value in change.arguments if isinstance(value, bytes)
        )
        if self._backlog_size > MAXIMUM_BACKLOG:
            log.error("too much has happened for %s to be brought up to date; this goes on in memory", self._disk.name)
            self._backlog, self._disk = [], None

    def _try_again(self) -> None:
        if self._disk is not None and self._clock() >= self._next_try:
            self._return_to_disk()

    def _return_to_disk(self) -> None:
        self._next_try = self._clock() + RETRY_SECONDS
        try:
            _apply(self._disk, self._backlog)
        except StoreUnavailable as error:
            self.problem = str(error)
            return
        log.info("the job store %s works again; %d changes were written", self._disk.name, len(self._backlog))
        self.current, self._disk = self._disk, None
        self._backlog, self._backlog_size, self.problem = [], 0, None


def _apply(store: JobStore, changes: Sequence[Change]) -> None:
    try:
        store.apply(changes)
    except StoreUnavailable:
        raise
    except Exception:  # one of them cannot be expressed; the others are not to suffer
        for change in changes:
            try:
                store.apply([change])
            except StoreUnavailable:
                raise
            except Exception:
                log.exception("%s of job %.100r cannot be stored", change.name, change.arguments[:1])
