"""The console's newest output."""

from __future__ import annotations

import logs

__all__ = ["get_logs"]


def get_logs() -> list[dict[str, str]]:
    """The kept entries, oldest first: `{"t": ISO time, "m": text}`."""
    return logs.buffer.entries()
