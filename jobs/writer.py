"""Group commit: changes are collected without waiting, and whoever has to know waits for the commit that holds them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from jobs.store import Change

log = logging.getLogger(__name__)

# Whoever adds a change outside of an event loop is likely to write it by `settle` in a moment; if not, the thread does
# after this time. To wake it each time would cost more than it is worth.
_LINGER_SECONDS = 0.25


class Writer:
    """Writes changes in the order in which they were added, many in one transaction.

    The event loop awaits `stored`, for which a thread writes; any other thread calls `settle` and, if it comes first,
    writes for all who have added something by then.

    Args:
        apply: writes a batch; must not raise.
    """

    def __init__(self, apply: Callable[[Sequence[Change]], None]) -> None:
        self._apply = apply
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._writing = threading.Lock()
        self._changes: list[Change] = []
        self._added = 0
        self._written = 0
        self._waiting: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._kicking = False  # a loop is about to call `_kick`
        self._urgent = False  # somebody waits for the thread
        self._closed = False

    def add(self, name: str, *arguments: object) -> None:
        """Note a change. Any thread; returns at once."""
        self.add_all((Change(name, arguments),))

    def add_all(self, changes: Sequence[Change]) -> None:
        """Note changes that are to be written together, or not at all. As `add`."""
        with self._wake:
            sleeps = not self._changes
            self._changes += changes
            self._added += len(changes)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="job-store", daemon=True)
                self._thread.start()
            loop = asyncio._get_running_loop()
            if loop is not None:
                self._kick_soon(loop)
            elif sleeps:
                self._wake.notify()

    def _kick_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the thread when the loop has handled what it has at hand: that becomes one commit."""
        if not self._kicking:
            self._kicking = True
            loop.call_soon(self._kick)

    def _kick(self) -> None:
        with self._wake:
            self._kicking = False
            self._urgent = True
            self._wake.notify()

    def settle(self, timeout: float | None = None) -> bool:
        """Write all that was added before this call. Returns False if that took more than `timeout` seconds."""
        with self._lock:
            target = self._added
            if self._written >= target:
                return True
        if not self._writing.acquire(timeout=-1 if timeout is None else timeout):
            return False
        try:
            if self._written < target:
                self._write()
        finally:
            self._writing.release()
        return True

    def between(self, action: Callable[[], None]) -> None:
        """Do something while nothing is written. Any thread but the event loop's."""
        with self._writing:
            action()

    async def stored(self) -> None:
        """As `settle`, on an event loop."""
        with self._lock:
            if self._written >= self._added:
                return
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiting.append((self._added, loop, future))
            self._kick_soon(loop)
        await future

    def close(self) -> None:
        """Write what is left and end the thread. Later changes are written by those who wait for them."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        self.settle()

    def _run(self) -> None:
        while True:
            with self._wake:
                # Without changes it sleeps until there are any: a wake-up costs every thread that computes.
                while not (self._urgent or self._closed):
                    if not self._wake.wait(_LINGER_SECONDS if self._changes else None):
                        break
                self._urgent = False
                if not self._changes:
                    if self._closed:
                        return
                    continue
            with self._writing:
                self._write()

    def _write(self) -> None:
        """Write what there is. The caller holds `_writing`."""
        with self._lock:
            changes, self._changes = self._changes, []
        if changes:
            started = time.perf_counter()
            try:
                self._apply(changes)
            except Exception:  # nobody may wait for ever
                log.exception("%d changes of jobs could not be stored", len(changes))
            seconds = time.perf_counter() - started
            if seconds > 1:
                log.warning("storing %d changes of jobs took %.1f s: the disk is slow", len(changes), seconds)
        with self._lock:
            self._written += len(changes)
            ready = [waiter for waiter in self._waiting if waiter[0] <= self._written]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] > self._written]
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for _, loop, future in ready:
            by_loop.setdefault(loop, []).append(future)
        for loop, futures in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
