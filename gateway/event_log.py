"""What clients may have missed: the events of each client id that has asked for numbers, for a while (docs/clients.md).

Numbers come from one counter for all ids, which starts at the time of the server's start: they grow from event to event
and from one server process to the next, so a number from before a restart is never mistaken for a newer one. Used from
the event loop only.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from gateway.outbox import Frame

MOST_CLIENTS = 256  # ids that are not connected and whose events are kept
MOST_EVENTS = 2_000  # of one id
MOST_BYTES = 4 << 20  # of one id
MOST_BYTES_OF_ALL = 64 << 20
KEPT_FOR = 900.0  # seconds


class EventLog:
    """The kept events of one id. Every event with a number above `complete_after` that is to be kept is there."""

    def __init__(self, complete_after: int):
        self.complete_after = complete_after
        self.size = 0  # bytes
        self._kept: deque[tuple[int, float, Frame]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, number: int, now: float, frame: Frame) -> None:
        """Keep an event."""
        self._kept.append((number, now, frame))
        self.size += len(frame.data)
        while len(self._kept) > MOST_EVENTS or self.size > MOST_BYTES:
            self._forget_oldest()

    def after(self, number: int) -> list[Frame]:
        """The events with a greater number, oldest first."""
        return [frame for kept, _, frame in self._kept if kept > number]

    def forget_before(self, moment: float) -> None:
        """Drop what is older."""
        while self._kept and self._kept[0][1] < moment:
            self._forget_oldest()

    def forget_all(self) -> None:
        """Drop everything."""
        while self._kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        number, _, frame = self._kept.popleft()
        self.complete_after = number
        self.size -= len(frame.data)


class EventLogs:
    """The logs of all ids, bounded in number and in bytes; the one that was used least recently goes first.

    connected: whether an id has a connection; such an id keeps its log, though it may be emptied.
    first: the number before the first event; by default the time, in microseconds.
    """

    def __init__(
        self,
        connected: Callable[[str], bool],
        first: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.last = int(time.time() * 1e6) if first is None else first  # the number of the newest event
        self._connected = connected
        self._clock = clock
        self._logs: OrderedDict[str, EventLog] = OrderedDict()  # least recently used first
        self._size = 0

    def __contains__(self, sid: object) -> bool:
        return sid in self._logs

    @property
    def size(self) -> int:
        """Bytes of all kept events."""
        return self._size

    def follow(self, sid: str) -> None:
        """Keep the events of this id from now on."""
        if sid not in self._logs:
            self._logs[sid] = EventLog(self.last)
        self._logs.move_to_end(sid)
        self._drop_ids()

    def add(self, sid: str, frame: Frame) -> Frame:
        """Number an event of a followed id, and keep it unless it is fleeting. Returns the frame with its number."""
        self.last += 1
        numbered = _with_number(frame, self.last)
        if frame.fleeting or frame.replaces is not None:
            return numbered
        log = self._logs[sid]
        self._logs.move_to_end(sid)
        self._size -= log.size
        log.add(self.last, self._clock(), numbered)
        self._size += log.size
        if self._size > MOST_BYTES_OF_ALL:
            self._shrink()
        return numbered

    def missed(self, sid: str, since: int) -> list[Frame] | None:
        """The kept events of an id after number `since`; None if some of them may be lost, or `since` is unknown."""
        log = self._logs.get(sid)
        if log is None:
            return None
        self._size -= log.size
        log.forget_before(self._clock() - KEPT_FOR)
        self._size += log.size
        return log.after(since) if log.complete_after <= since <= self.last else None

    def tidy(self) -> None:
        """Drop what is too old."""
        oldest = self._clock() - KEPT_FOR
        for log in self._logs.values():
            log.forget_before(oldest)
        self._size = sum(log.size for log in self._logs.values())

    def _drop_ids(self) -> None:
        """Forget ids over the limit that are not connected; those that are, are bounded by their sockets."""
        idle = [sid for sid in self._logs if not self._connected(sid)] if len(self._logs) > MOST_CLIENTS else []
        for sid in idle[: max(0, len(idle) - MOST_CLIENTS)]:
            self._size -= self._logs.pop(sid).size

    def _shrink(self) -> None:
        for log in self._logs.values():
            if self._size <= MOST_BYTES_OF_ALL:
                return
            self._size -= log.size
            log.forget_all()


def _with_number(frame: Frame, number: int) -> Frame:
    """A JSON frame with the key `seq`; a binary one has no place for it."""
    if frame.binary:
        return frame
    return Frame(frame.data[:-1] + b',"seq":%d}' % number, False, frame.replaces, frame.fleeting)
