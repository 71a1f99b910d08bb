"""Pages of the list of jobs: by offset, as the reference does, or by a cursor, which does not slow down further on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from comfy_execution import jsonbytes
from jobs import cards
from jobs.ledger import Ledger
from jobs.store import Query, Row

Facts = Mapping[str, Mapping[str, Any]]


LONGEST_PAGE = 10_000  # jobs that an answer has at most, whatever the request wants; as many as the reference keeps


class BadCursor(ValueError):
    """A cursor that no page has given out."""


def by_offset(ledger: Ledger, query: Query, full: Facts | None = None) -> bytes:
    """JSON of GET /api/jobs. full: with all that the ledger knows, and these facts by job id. Reads the disk.

    `pagination.limit` is the limit in force: null without one in the request, `LONGEST_PAGE` when that wants more.
    """
    total, limit = ledger.total(query), min(query.limit or LONGEST_PAGE, LONGEST_PAGE)
    rows = ledger.page(replace(query, limit=limit))
    pagination = {
        "offset": query.offset,
        "limit": limit if query.limit is not None else None,
        "total": total,
        "has_more": query.offset + len(rows) < total and bool(rows),
    }
    return _answer(ledger, rows, pagination, full)


def by_cursor(ledger: Ledger, query: Query, cursor: str, full: Facts | None = None) -> bytes:
    """As `by_offset`, for the jobs behind a cursor; an empty one stands for the start.

    `pagination` has `next_cursor`, null on the last page, and no total: counting would cost more than the page.

    Raises:
        BadCursor: it is none, or of another order.
    """
    limit = min(query.limit or 100, LONGEST_PAGE)
    after = read_cursor(cursor, query) if cursor else None
    rows = ledger.page(replace(query, after=after, limit=limit + 1, offset=0))
    more = len(rows) > limit
    rows = rows[:limit]
    following = write_cursor(rows[-1], query) if more else None
    return _answer(ledger, rows, {"limit": limit, "has_more": more, "next_cursor": following}, full)


def write_cursor(row: Row, query: Query) -> str:
    """The cursor for what comes after a row."""
    return base64.urlsafe_b64encode(orjson.dumps([_order(query), row.key, row.seq])).decode().rstrip("=")


def read_cursor(cursor: str, query: Query) -> tuple[float, int]:
    """What `Query.after` wants. Raises BadCursor."""
    try:
        order, key, seq = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, binascii.Error) as error:
        raise BadCursor(f"{cursor[:100]!r} is no cursor of this server") from error
    if order != _order(query):
        raise BadCursor("the cursor belongs to a list in another order: keep sort_by and sort_order from page to page")
    is_place = not isinstance(seq, bool) and isinstance(seq, int) and isinstance(key, int | float)
    if not is_place or max(abs(key), abs(seq)) >= 2**63:
        raise BadCursor(f"{cursor[:100]!r} is no cursor of this server")
    return key, seq


def _order(query: Query) -> str:
    return f"{'duration' if query.by_duration else 'created'}{'-' if query.descending else '+'}"


def _answer(ledger: Ledger, rows: list[Row], pagination: dict[str, Any], full: Facts | None) -> bytes:
    shown = [cards.listed(row, full is not None) for row in rows]
    answer: dict[str, Any] = {"jobs": shown, "pagination": pagination}
    if full is not None:
        answer["instance_id"] = ledger.instance_id
        for row, job in zip(rows, shown, strict=True):
            if isinstance(job, dict):  # it waits or runs
                job |= full.get(row.id, {})
    return jsonbytes.encode(answer)
