"""Jobs in the order of their creation, kept up to date, so that a page of a long list costs what the page costs."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from heapq import merge
from itertools import count, islice
from operator import itemgetter
from typing import Any

# (creation time, number of the insertion, state, entry); the first two are unique and decide the order.
Record = tuple[float, int, str, Any]
_PLACE = itemgetter(0, 1)


class JobOrder:
    """Entries with a state, sorted by creation time; equal times in the order in which they were added."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._by_token: dict[Hashable, Record] = {}
        self._states: Counter[str] = Counter()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, token: Hashable, created: Any, state: str, entry: Any) -> None:
        """Add an entry; one of the same token is replaced. created: ms since the epoch; what is no time counts as 0."""
        self.discard(token)
        is_time = isinstance(created, int | float) and math.isfinite(created)
        record = (created if is_time else 0, next(self._numbers), state, entry)
        self._by_token[token] = record
        self._states[state] += 1
        insort(self._records, record, key=_PLACE)

    def discard(self, token: Hashable) -> None:
        """Remove an entry, if it is there."""
        record = self._by_token.pop(token, None)
        if record is not None:
            self._states[record[2]] -= 1
            del self._records[bisect_left(self._records, _PLACE(record), key=_PLACE)]

    def clear(self) -> None:
        """Remove all entries."""
        self._records.clear()
        self._by_token.clear()
        self._states.clear()

    def total(self, states: Collection[str]) -> int:
        """How many entries are in these states."""
        return sum(self._states[state] for state in states)

    def walk(self, states: Collection[str], descending: bool) -> Iterator[Record]:
        """The entries in these states, in order."""
        left = self.total(states)
        records = reversed(self._records) if descending else iter(self._records)
        while left:
            record = next(records)
            if record[2] in states:
                left -= 1
                yield record


def page(
    orders: Iterable[JobOrder], states: Collection[str], descending: bool, offset: int, limit: int | None
) -> tuple[list[tuple[str, Any]], int]:
    """(state, entry) of the entries of several orders in one, cut to a page; and how many there are in all.

    At equal times the entries of earlier orders come first, or last if descending.
    """
    orders = list(orders)
    if descending:
        orders.reverse()
    walks = [order.walk(states, descending) for order in orders]
    records = merge(*walks, key=itemgetter(0), reverse=descending)
    cut = islice(records, offset, None if limit is None else offset + limit)
    return [(state, entry) for _, _, state, entry in cut], sum(order.total(states) for order in orders)
