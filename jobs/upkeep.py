"""Looks after the store also while nothing happens: an idle server returns to its disk, and deletes what is old."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks


class Upkeep:
    """Calls something now and then, from a thread of its own."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._main, name="job-upkeep", daemon=True).start()

    def stop(self) -> None:
        """End. Returns at once."""
        self._stopped.set()

    def _main(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception:
                log.exception("the job store could not be looked after")
