"""The line of waiting prompts: who is next, and moving them about.

The order is (number, place): the number is what clients know and set; the place decides among equal numbers. A new
prompt's place is the count of arrivals; what is moved beside another prompt takes its number and a place beside its
place. So a move changes nothing but what is moved, and later arrivals of that number still go behind.

Not safe for threads: its owner, the queue, has the lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

FRONT, BACK, BEFORE, AFTER = "front", "back", "before", "after"


class Waiting:
    """One pending entry. `token` stays the same when it is moved; `place` may change.

    causes: why each attempt at it so far was given up.
    """

    __slots__ = ("causes", "entry", "gone", "place", "token")

    def __init__(self, entry: Any, token: int, place: float, causes: tuple[str, ...] = ()) -> None:
        self.entry = entry
        self.token = token
        self.place = place
        self.causes = causes
        self.gone = False

    @property
    def key(self) -> tuple[float, float, int]:
        """What the line is sorted by."""
        return self.entry[0], self.place, self.token

    def __lt__(self, other: Waiting) -> bool:
        return self.key < other.key


class Line:
    """Pending entries. Adding, taking and dropping one is O(log n); looking at all of them is a sort."""

    def __init__(self) -> None:
        self._heap: list[Waiting] = []  # those that have gone stay here, marked, until they surface
        self._by_token: dict[int, Waiting] = {}
        self._by_id: dict[str, list[Waiting]] = {}  # an id may wait twice
        self._arrivals = 0
        self.size = 0  # bytes of the JSON of all that wait

    def __len__(self) -> int:
        return len(self._by_token)

    def __contains__(self, prompt_id: object) -> bool:
        return prompt_id in self._by_id

    def add(self, entry: Any, place: float | None = None, causes: tuple[str, ...] = ()) -> Waiting:
        """Let an entry wait: behind all of its number, or at a place it had before."""
        token = self._arrival()
        waiting = Waiting(entry, token, token if place is None else place, causes)
        self._arrivals = max(self._arrivals, int(waiting.place) + 1)  # a place may come from an earlier life
        self._insert(waiting)
        return waiting

    def _insert(self, waiting: Waiting) -> None:
        self._by_token[waiting.token] = waiting
        self._by_id.setdefault(waiting.entry[1], []).append(waiting)
        heapq.heappush(self._heap, waiting)
        self.size += len(waiting.entry.json)

    def first(self) -> Waiting | None:
        """The first, which stays; None if nobody waits."""
        while self._heap and self._heap[0].gone:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def take(self) -> Waiting:
        """Remove the first. Raises IndexError if nobody waits."""
        waiting = heapq.heappop(self._heap)
        while waiting.gone:
            waiting = heapq.heappop(self._heap)
        self._forget(waiting)
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """Remove one, wherever it is."""
        self._forget(waiting)
        waiting.gone = True
        if len(self._heap) > 2 * len(self._by_token) + 16:
            self._heap = list(self._by_token.values())
            heapq.heapify(self._heap)

    def clear(self) -> list[Waiting]:
        """Remove all; returns them in order."""
        dropped = self.in_order()
        self._heap.clear()
        self._by_token.clear()
        self._by_id.clear()
        self.size = 0
        return dropped

    def of(self, prompt_id: str) -> list[Waiting]:
        """Those of an id, in the order of their arrival."""
        return list(self._by_id.get(prompt_id, ()))

    def in_order(self) -> list[Waiting]:
        """All, the next one first."""
        return sorted(self._by_token.values())

    def nth(self, position: int) -> Waiting | None:
        """The one at a position from 0, or the last if there are fewer; None if nobody waits."""
        first = heapq.nsmallest(position + 1, self._by_token.values())
        return first[-1] if first else None

    # --- moving ------------------------------------------------------------------------------------------

    def set_number(self, moving: Sequence[Waiting], number: float) -> list[Waiting]:
        """Give all of them a number; they go behind those who have it already. Returns what stands for them now."""
        return self._put(moving, [(number, self._arrival()) for _ in moving])

    def move(self, moving: Sequence[Waiting], where: str, anchor: Waiting | None = None) -> list[Waiting]:
        """Put some together, in this order, at the front, at the back, or before or after another.

        Returns:
            Every one whose number or place has changed, as it is now: those moved, then others that made room.

        Raises:
            ValueError: before or after one that is to be moved itself, or that does not wait.
        """
        tokens = {waiting.token for waiting in moving}
        others = [waiting for waiting in self.in_order() if waiting.token not in tokens]
        if where in (BEFORE, AFTER):
            if anchor is None or anchor.gone or anchor.token in tokens or anchor.token not in self._by_token:
                raise ValueError("what prompts are moved to must wait, and not be among them")
            at = others.index(anchor) + (where == AFTER)
        else:
            at = 0 if where == FRONT else len(others)
        if not others:  # nobody to be before or behind: they keep the lowest of their numbers
            return self.set_number(moving, min(waiting.entry[0] for waiting in moving))
        if where == BACK:
            return self.set_number(moving, others[-1].entry[0])
        beside = others[at - 1] if where == AFTER else others[at]
        number = beside.entry[0]
        places = self._places(others, at, number, len(moving))
        if places is not None:
            return self._put(moving, [(number, place) for place in places])
        return self._renumber(moving, others, at, number)

    def _places(self, others: list[Waiting], at: int, number: float, wanted: int) -> list[float] | None:
        """Places among those of a number between positions at - 1 and at; None if floats are not fine enough."""
        low = others[at - 1].place if at > 0 and others[at - 1].entry[0] == number else None
        high = others[at].place if at < len(others) and others[at].entry[0] == number else None
        if high is None:
            high = self._arrival()  # later arrivals go behind
        if low is None:
            low = high - wanted - 1
        places = [low + (high - low) * (step + 1) / (wanted + 1) for step in range(wanted)]
        bounds = [low, *places, high]
        return places if all(a < b for a, b in pairwise(bounds)) else None

    def _renumber(self, moving: Sequence[Waiting], others: list[Waiting], at: int, number: float) -> list[Waiting]:
        """Give all of a number new places, with those that move among them."""
        before = [waiting for waiting in others[:at] if waiting.entry[0] == number]
        behind = [waiting for waiting in others[at:] if waiting.entry[0] == number]
        order = [*before, *moving, *behind]
        now = self._put(order, [(number, self._arrival()) for _ in order])
        moved = now[len(before) : len(before) + len(moving)]
        return [*moved, *now[: len(before)], *now[len(before) + len(moving) :]]

    def _put(self, moving: Iterable[Waiting], keys: Iterable[tuple[float, float]]) -> list[Waiting]:
        moved = []
        for old, (number, place) in zip(moving, keys, strict=True):
            new = Waiting(old.entry.with_number(number), old.token, place, old.causes)
            self.remove(old)
            self._insert(new)
            moved.append(new)
        return moved

    def _arrival(self) -> int:
        self._arrivals += 1
        return self._arrivals - 1

    def _forget(self, waiting: Waiting) -> None:
        del self._by_token[waiting.token]
        self.size -= len(waiting.entry.json)
        same_id = self._by_id[waiting.entry[1]]
        same_id.remove(waiting)
        if not same_id:
            del self._by_id[waiting.entry[1]]
