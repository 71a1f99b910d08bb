"""Requests that are no proper HTTP: aiohttp answers them; here the log gets one line instead of a traceback."""

from __future__ import annotations

import logging

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

# What aiohttp raises for what clients send: bad request lines, headers, chunks, content codings.
CLIENT_FAULTS = (HttpProcessingError, web.RequestPayloadError, ClientPayloadError)


class ClientFaults(logging.Filter):
    """Turns aiohttp's report of a client's mistake, an error with a traceback, into a line at INFO."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CLIENT_FAULTS):
            lines = str(getattr(error, "message", "") or error).split("\n")
            record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {lines[0]:.200}", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger().isEnabledFor(record.levelno)


def soften() -> None:
    """Have the server's log softened. Any number of times."""
    logger = logging.getLogger("aiohttp.server")
    if not any(isinstance(known, ClientFaults) for known in logger.filters):
        logger.addFilter(ClientFaults())
