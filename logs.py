"""Logging set-up from the command line: console, levels, log files (spec/cli.md `--verbose`, `--log-stdout`)."""

from __future__ import annotations

import logging
import sys

import gateway.logs

DETAIL = 15  # between DEBUG and INFO

logging.addLevelName(DETAIL, "DETAIL")


class _BelowError(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR


def level_number(name: str) -> int:
    """The logging level of that name, DETAIL included."""
    return DETAIL if name == "DETAIL" else getattr(logging, name)


def setup(namespace) -> None:
    """Configure the root logger from the command line's flags, behind the tees that keep the newest lines.

    A log file that cannot be opened is reported and left out.
    """
    gateway.logs.install()
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
