"""How long a job may run."""

from __future__ import annotations

import math
from typing import Any


def seconds_of(value: Any) -> float | None:
    """The limit that `extra_data.timeout` asks for, in seconds; None if it asks for none.

    Raises:
        ValueError: it is no positive, finite number.
    """
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        seconds = float(value) if is_number else math.nan
    except OverflowError:  # an integer of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"extra_data.timeout must be a positive number of seconds, got {value!r:.200}")
    return seconds


def time_limit(extra_data: Any, longest: float) -> float | None:
    """Seconds a job may run: what it asks for, but never more than the server allows.

    longest: the server's limit; 0: none.
    """
    try:
        asked = seconds_of(extra_data.get("timeout"))
    except (AttributeError, ValueError):  # put into the queue by other means than POST /prompt
        asked = None
    limits = [limit for limit in (asked, longest) if limit]
    return min(limits) if limits else None
