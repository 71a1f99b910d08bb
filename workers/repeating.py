"""Threads that do something again and again beside the worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Repeating:
    """Calls `look` every so often, from a thread of its own; an exception of it is logged and ends nothing.

    Args:
        name: of the thread.
        seconds: between two calls, and before the first.
    """

    def __init__(self, name: str, seconds: float, look: Callable[[], None]) -> None:
        self._name = name
        self._seconds = seconds
        self._look = look
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._main, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Call no more. Returns at once."""
        self._stopped.set()

    def _main(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._look()
            except Exception:
                log.exception("%s failed, and goes on", self._name)
