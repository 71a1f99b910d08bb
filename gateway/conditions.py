"""What a request's conditions and ranges mean for a file (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate

from multidict import CIMultiDictProxy

_TAG = re.compile(r'\s*,*\s*(W/)?"([^"\x00-\x20\x7f]*)"')
_RANGE = re.compile(r"(\d*)-(\d*)", re.ASCII)
_UNIT = re.compile(r"\s*bytes\s*=", re.IGNORECASE)
_MOST_DIGITS = 30  # of a position in a file: every file has ended before


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a file: its strong tag, without quotes, and when it was changed, in whole seconds of the epoch."""

    tag: str
    changed: int


@dataclass(frozen=True, slots=True)
class Part:
    """What to answer: the status, and which bytes: `count` of them from `first` on."""

    status: int
    first: int = 0
    count: int = 0


def seconds(date: str | None) -> float | None:
    """Seconds of the epoch of an HTTP date; None without one, and for what is no date."""
    fields = parsedate(date) if date is not None else None
    if fields is None:
        return None
    try:
        return datetime(*fields[:6], tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None


def tag_among(tag: str, text: str, weak: bool) -> bool:
    """Whether a list of tags, as in `If-None-Match`, has this one or is `*`. weak: tags marked so count, too."""
    if text.strip() == "*":
        return True
    place = 0
    while found := _TAG.match(text, place):
        if found[2] == tag and (weak or not found[1]):
            return True
        place = found.end()
    return False


def part_of(method: str, headers: CIMultiDictProxy[str], version: Version, size: int) -> Part:
    """What to answer to a GET or HEAD of a file of `size` bytes."""

    def tags(name: str) -> str | None:
        return ",".join(headers.getall(name)) if name in headers else None

    must_match, must_differ = tags("If-Match"), tags("If-None-Match")
    if must_match is not None:
        if not tag_among(version.tag, must_match, weak=False):
            return Part(412)
    elif (date := seconds(headers.get("If-Unmodified-Since"))) is not None and version.changed > date:
        return Part(412)
    if must_differ is not None:
        if tag_among(version.tag, must_differ, weak=True):
            return Part(304)
    elif (date := seconds(headers.get("If-Modified-Since"))) is not None and version.changed <= date:
        return Part(304)
    # Only GET has ranges. A part that was got earlier may be of another file: then the whole one is sent.
    if method == "GET" and "Range" in headers and _is_continued(headers.get("If-Range"), version):
        return _asked_part(headers["Range"], size)
    return Part(200, 0, size)


def _is_continued(validator: str | None, version: Version) -> bool:
    """Whether `If-Range` names this very state of the file: a strong tag, or exactly its date."""
    if validator is None:
        return True
    if '"' in validator:
        return validator.strip() == f'"{version.tag}"'
    return seconds(validator) == version.changed


def _asked_part(text: str, size: int) -> Part:
    whole = Part(200, 0, size)
    unit = _UNIT.match(text)
    if unit is None:
        return whole  # of no unit that is known here: as if it were not there
    parts = []
    for wanted in text[unit.end() :].split(","):
        if not wanted.strip():
            continue
        found = _RANGE.fullmatch(wanted.strip())
        if found is None or not any(found.groups()):
            return Part(416)
        first, last = (_position(digits) for digits in found.groups())
        if first is None:
            first, last = max(0, size - (last or 0)), size - 1
        elif last is not None and last < first:
            return Part(416)
        if first < size:
            parts.append(Part(206, first, (size if last is None else min(last + 1, size)) - first))
    if len(parts) > 1:
        return whole  # several at once are sent as what they are parts of, which RFC 9110 14.2 leaves to us
    return parts[0] if parts else Part(416)


def _position(digits: str) -> int | None:
    return int(digits.lstrip("0")[:_MOST_DIGITS] or "0") if digits else None
