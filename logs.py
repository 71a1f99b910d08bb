"""Logging set-up, and the last lines of the console for /internal/logs and its subscribers.

Levels and flags: spec/cli.md (`--verbose`, `--log-stdout`). What nodes print counts as well, so stdout and
stderr are wrapped rather than only the logging module (spec/http-api.md section 10).
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime

KEPT_ENTRIES = 300
LONGEST_ENTRY = 64 << 10  # characters
DETAIL = 15  # between DEBUG and INFO

logging.addLevelName(DETAIL, "DETAIL")

LogEntry = dict[str, str]  # {"t": ISO time, "m": text}


class LogBuffer:
    """The newest console entries; listeners are called with what was added at each flush."""

    def __init__(self, size: int = KEPT_ENTRIES):
        self._entries: deque[LogEntry] = deque(maxlen=size)
        self._unsent: list[LogEntry] = []
        self._lock = threading.Lock()
        self._listeners: list[Callable[[list[LogEntry]], None]] = []

    def write(self, text: str) -> None:
        """Add a piece of console output; what a progress bar overwrites (`\\r`) is replaced."""
        if not text:
            return
        text = text[:LONGEST_ENTRY]
        entry = {"t": datetime.now().isoformat(), "m": text}
        with self._lock:
            if text.startswith("\r") and self._entries and self._entries[-1]["m"].startswith("\r"):
                self._entries.pop()
            self._entries.append(entry)
            if self._listeners:
                self._unsent.append(entry)
                del self._unsent[:-KEPT_ENTRIES]

    def flush(self) -> None:
        """Hand what came since the last flush to the listeners. A listener that raises is dropped."""
        with self._lock:
            if not self._unsent:
                return
            entries, self._unsent = self._unsent, []
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(entries)
            except Exception:  # logging here would come back to this place
                self.unlisten(listener)

    def entries(self) -> list[LogEntry]:
        """The kept entries, oldest first."""
        with self._lock:
            return list(self._entries)

    def listen(self, listener: Callable[[list[LogEntry]], None]) -> None:
        """Call `listener(entries)` at each flush, on the thread that flushed; it must not block."""
        with self._lock:
            if listener not in self._listeners:
                self._listeners.append(listener)

    def unlisten(self, listener: Callable[[list[LogEntry]], None]) -> None:
        """Stop calling `listener`."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)


class _Tee:
    """A text stream that also writes to the buffer; everything else is the wrapped stream's."""

    def __init__(self, stream, log_buffer: LogBuffer):
        self._stream = stream
        self._buffer = log_buffer

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

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


buffer = LogBuffer()


class _BelowError(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


def level_number(name: str) -> int:
    """The logging level of that name, DETAIL included."""
    return DETAIL if name == "DETAIL" else getattr(logging, name)


def setup(namespace) -> None:
    """Wrap the console and configure the root logger from the command line's flags.

    A log file that cannot be opened is reported and left out.
    """
    sys.stdout = _Tee(sys.stdout, buffer)
    sys.stderr = _Tee(sys.stderr, buffer)
    console_level = level_number(namespace.verbose)
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    root = logging.getLogger()
    root.handlers.clear()

    def add(handler: logging.Handler, level: int) -> None:
        handler.setFormatter(formatter)
        handler.setLevel(level)
        root.addHandler(handler)

    if namespace.log_stdout:
        below = logging.StreamHandler(sys.stdout)
        below.addFilter(_BelowError())
        add(below, console_level)
        add(logging.StreamHandler(sys.stderr), max(console_level, logging.ERROR))
    else:
        add(logging.StreamHandler(sys.stderr), console_level)
    levels = [console_level]
    failed: list[str] = []
    for level_name, path in namespace.log_files:
        try:
            add(logging.FileHandler(path, encoding="utf-8"), level_number(level_name))
            levels.append(level_number(level_name))
        except OSError as error:
            failed.append(f"cannot log to {path}: {error}")
    root.setLevel(min(levels))
    for message in failed:
        logging.error(message)
    # These narrate every request or file at INFO.
    for chatty in ("aiohttp.access", "PIL", "asyncio", "urllib3"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, console_level))
