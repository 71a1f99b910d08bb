"""Which clients want to hear of new console lines, and sending them there (spec: http-api.md section 10)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from logs import LogBuffer, LogEntry


def terminal_size() -> dict[str, int]:
    """Columns and rows of the terminal, 80 x 24 without one."""
    try:
        size = os.get_terminal_size()
    except OSError:
        return {"cols": 80, "rows": 24}
    return {"cols": size.columns, "rows": size.lines}


class LogFeed:
    """Sends new log entries to the clients that asked for them.

    A client that has no connection by the time of the next entries is forgotten: it may never come.
    """

    def __init__(self, buffer: LogBuffer, send: Callable[[str, Any, str], None], is_connected: Callable[[str], bool]):
        self._buffer = buffer
        self._send = send
        self._is_connected = is_connected
        self._lock = threading.Lock()  # clients come and go on the loop, entries on any thread
        self._clients: frozenset[str] = frozenset()

    def entries(self) -> list[LogEntry]:
        """The kept entries, oldest first."""
        return self._buffer.entries()

    def subscribe(self, client_id: str) -> None:
        """Send this client `logs` events from now on."""
        with self._lock:
            self._clients |= {client_id}
            self._buffer.listen(self._forward)

    def unsubscribe(self, client_id: str) -> None:
        """Send this client no more of them."""
        self._drop({client_id})

    def _drop(self, clients: set[str]) -> None:
        with self._lock:
            self._clients -= clients
            if not self._clients:
                self._buffer.unlisten(self._forward)

    def _forward(self, entries: list[LogEntry]) -> None:
        gone = set()
        for client_id in self._clients:
            if self._is_connected(client_id):
                self._send("logs", {"entries": entries, "size": None}, client_id)
            else:
                gone.add(client_id)
        if gone:
            self._drop(gone)
