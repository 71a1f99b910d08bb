"""Which clients want to hear of new console lines, and sending them there (spec: http-api.md section 10)."""

from __future__ import annotations

import os
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
    """Sends new log entries to the clients that asked for them."""

    def __init__(self, buffer: LogBuffer, send: Callable[[str, Any, str], None]):
        self._buffer = buffer
        self._send = send
        self._clients: frozenset[str] = frozenset()

    def entries(self) -> list[LogEntry]:
        """The kept entries, oldest first."""
        return self._buffer.entries()

    def subscribe(self, client_id: str) -> None:
        """Send this client `logs` events from now on."""
        self._clients |= {client_id}
        self._buffer.listen(self._forward)

    def unsubscribe(self, client_id: str) -> None:
        """Send this client no more of them."""
        self._clients -= {client_id}
        if not self._clients:
            self._buffer.unlisten(self._forward)

    def _forward(self, entries: list[LogEntry]) -> None:
        for client_id in self._clients:
            self._send("logs", {"entries": entries, "size": None}, client_id)
