"""What waits to be written to one WebSocket: ordered, bounded, and never losing what a client cannot do without.

A reader that keeps up sees every frame. When frames pile up, what a newer frame replaces is dropped first: previews,
progress, queue counts. The outcome of a run is never dropped; a reader so slow that even that piles up is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

SOFT_FRAMES = 256  # from here on, replaceable frames are thinned out
SOFT_BYTES = 16 << 20
HARD_FRAMES = 20_000  # from here on, the connection is given up
HARD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """One encoded message, shared by all sockets that get it.

    replaces: frames with an equal key may be dropped in favour of a newer one; None for frames that must arrive.
    fleeting: means nothing to a client that was not connected when it was sent.
    """

    data: bytes
    binary: bool = False
    replaces: Hashable = None
    fleeting: bool = False


class OutboxOverflow(Exception):
    """A client has stopped reading while messages it must not miss pile up."""

    def __init__(self, frames: int, size: int):
        super().__init__(f"{frames} frames, {size} bytes unread")


class Outbox:
    """The frames of one connection. Used from the event loop only."""

    def __init__(self):
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: Frame) -> None:
        """Append a frame. Raises OutboxOverflow when the reader is hopelessly behind."""
        self._frames.append(frame)
        self._bytes += len(frame.data)
        if len(self._frames) > SOFT_FRAMES or self._bytes > SOFT_BYTES:
            self._thin_out(frame)
            if len(self._frames) > HARD_FRAMES or self._bytes > HARD_BYTES:
                raise OutboxOverflow(len(self._frames), self._bytes)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _thin_out(self, newest: Frame) -> None:
        if newest.replaces is None:
            return
        for position in range(len(self._frames) - 2, -1, -1):
            frame = self._frames[position]
            if frame.replaces == newest.replaces:
                del self._frames[position]
                self._bytes -= len(frame.data)
                return

    async def get(self) -> Frame:
        """The next frame, waiting for one if need be."""
        while not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        self._bytes -= len(frame.data)
        return frame
