"""The newest lines the process has printed, and who wants to hear of new ones (spec: http-api.md section 10).

`install()` puts a tee in front of stdout and stderr. Call it before logging is configured, so that handlers pick
the tees up.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

KEPT_LINES = 300
LONGEST_LINE = 64 << 10  # characters kept of one line

Entry = dict[str, str]


def terminal_size() -> dict[str, int]:
    """Columns and rows of the terminal, 80 x 24 without one."""
    try:
        size = os.get_terminal_size()
    except OSError:
        return {"cols": 80, "rows": 24}
    return {"cols": size.columns, "rows": size.lines}


class LogBuffer:
    """Printed lines, each `{"t": ISO time, "m": text}`. Every method may be called from any thread."""

    def __init__(self, kept: int = KEPT_LINES):
        self._entries: deque[Entry] = deque(maxlen=kept)
        self._fresh: list[Entry] = []
        self._lock = threading.Lock()
        self._listener: Callable[[list[Entry]], None] | None = None
        self._notifying = threading.local()

    def write(self, text: str) -> None:
        """Keep a piece of output; pieces up to a line end make one entry, `\\r` starts the line anew."""
        if not text:
            return
        with self._lock:
            last = self._fresh[-1] if self._fresh else None
            if last is not None and not last["m"].endswith("\n"):
                if text.startswith("\r"):
                    last["m"] = text
                    return
                if len(last["m"]) < LONGEST_LINE:
                    last["m"] += text[:LONGEST_LINE]
                return
            entry = {"t": datetime.now().isoformat(), "m": text[:LONGEST_LINE]}
            self._entries.append(entry)
            self._fresh.append(entry)
            if len(self._fresh) > KEPT_LINES:
                del self._fresh[0]

    def flush(self) -> None:
        """Tell the listener what is new since the last flush."""
        if getattr(self._notifying, "active", False):
            return  # the listener itself has printed something
        with self._lock:
            fresh, self._fresh = [dict(e) for e in self._fresh], []
            listener = self._listener
        if listener is None or not fresh:
            return
        self._notifying.active = True
        try:
            listener(fresh)
        finally:
            self._notifying.active = False

    def listen(self, listener: Callable[[list[Entry]], None] | None) -> None:
        """Call `listener(new entries)` on each flush; None stops."""
        self._listener = listener

    def entries(self) -> list[Entry]:
        """The kept entries, oldest first."""
        with self._lock:
            return [dict(e) for e in self._entries]


class _Tee:
    """A text stream that also writes to the log buffer; everything else is the original stream's."""

    def __init__(self, stream: Any, buffer: LogBuffer):
        self._stream = stream
        self._buffer = buffer

    def write(self, text: str) -> int:
        self._buffer.write(text)
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError:  # the console has gone away; the server has not
            return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
        self._buffer.flush()

    def __iter__(self):
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


log_buffer = LogBuffer()


def install() -> None:
    """Put tees in front of stdout and stderr; calling it again changes nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Tee):
            setattr(sys, name, _Tee(stream, log_buffer))


class LogFeed:
    """Sends new log entries to the clients that asked for them."""

    def __init__(self, buffer: LogBuffer, send: Callable[[str, Any, str], None]):
        self._buffer = buffer
        self._send = send
        self._clients: frozenset[str] = frozenset()

    def entries(self) -> list[Entry]:
        """The kept entries, oldest first."""
        return self._buffer.entries()

    def subscribe(self, client_id: str) -> None:
        """Send this client `logs` events from now on."""
        self._set(self._clients | {client_id})

    def unsubscribe(self, client_id: str) -> None:
        """Send this client no more of them."""
        self._set(self._clients - {client_id})

    def _set(self, clients: frozenset[str]) -> None:
        self._clients = clients
        self._buffer.listen(self._forward if clients else None)

    def _forward(self, entries: list[Entry]) -> None:
        for client_id in self._clients:
            self._send("logs", {"entries": entries, "size": None}, client_id)
