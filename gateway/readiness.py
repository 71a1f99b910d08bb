"""The gate that opens when torch, the built-in nodes and the custom packs are loaded.

The server answers long before that; what needs nodes waits here, on the event loop or in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class NodesUnavailable(Exception):
    """The nodes could not be loaded; the message says why."""


class NodesReady:
    """An event with both a blocking and an awaitable side. `set` and `fail` may be called from any thread.

    on_open: called on the event loop after `set`, before anyone who awaits goes on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_open: Callable[[], None]):
        self._loop = loop
        self._on_open = on_open
        self._thread_event = threading.Event()
        self._loop_event = asyncio.Event()
        self._error: BaseException | None = None

    def set(self) -> None:
        """The nodes are there."""
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:
            log.debug("the event loop is closed; nobody waits for nodes")
        self._thread_event.set()

    def fail(self, error: BaseException) -> None:
        """The nodes will never be there: those who await them get NodesUnavailable."""
        self._error = error
        self._loop.call_soon_threadsafe(self._loop_event.set)

    def is_set(self) -> bool:
        """Whether the nodes are there."""
        return self._thread_event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block a thread (never the event loop) until the nodes are there; False on timeout."""
        return self._thread_event.wait(timeout)

    async def wait_async(self) -> None:
        """Wait on the event loop. Raises NodesUnavailable if loading failed."""
        if not self._loop_event.is_set():
            await self._loop_event.wait()
        if self._error is not None:
            raise NodesUnavailable(f"{type(self._error).__name__}: {self._error}") from self._error

    def _open(self) -> None:
        try:
            self._on_open()
        except Exception:
            log.exception("routes of custom nodes could not be added")
        self._loop_event.set()
