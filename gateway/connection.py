"""One open WebSocket: what is known of it, and writing to it (spec: websocket.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from gateway.outbox import HARD_FRAMES, Frame, Outbox, OutboxOverflow
from protocol import to_json

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Connection:
    """One open WebSocket."""

    ws: web.WebSocketResponse
    sid: str
    transport: asyncio.Transport | None
    last_seen: float
    outbox: Outbox = field(default_factory=Outbox)
    metadata: dict[str, Any] = field(default_factory=lambda: {"feature_flags": {}})
    shared: bool = False  # gets the id's events beside whatever other connection of the id gets them
    numbered: bool = False  # has asked what it missed: its events carry their numbers
    heard_json: bool = False
    writing: bool = False
    _held: list[Frame] | None = None  # what comes while a snapshot is made, to be sent after it

    def abort(self) -> None:
        """Drop the connection without a closing handshake."""
        if self.transport is not None:
            self.transport.abort()

    def put(self, frame: Frame) -> None:
        """Send a frame when its turn comes. A client that has stopped reading is given up."""
        if self._held is not None and len(self._held) < HARD_FRAMES:
            self._held.append(frame)
            return
        try:
            if self._held is not None:
                raise OutboxOverflow(len(self._held), sum(len(held.data) for held in self._held))
            self.outbox.put(frame)
        except OutboxOverflow as error:
            log.warning("client %s does not read its events (%s); disconnecting it", self.sid, error)
            self.abort()

    @property
    def is_held(self) -> bool:
        """Whether frames wait for `release`."""
        return self._held is not None

    def hold(self) -> None:
        """Keep frames back until `release`."""
        self._held = []

    def release(self, first: Frame) -> None:
        """Send a frame, then those that were kept back."""
        frames, self._held = [first, *(self._held or [])], None
        for frame in frames:
            self.put(frame)

    async def write(self) -> None:
        """Write what is put, until the connection is gone."""
        try:
            while True:
                frame = await self.outbox.get()
                self.writing = True
                if frame.binary:
                    await self.ws.send_bytes(frame.data)
                else:
                    await self.ws.send_frame(frame.data, WSMsgType.TEXT)
                self.writing = False
        except (ConnectionError, RuntimeError) as error:
            log.debug("writing to client %s ended: %s", self.sid, error)
            self.abort()


def since_of(query: Mapping[str, str]) -> int | None:
    """The number that the query asks to continue after, None without one. Raises HTTPBadRequest."""
    text = query.get("since")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        error = f"since must be a number that came as seq, or 0; not {text[:80]!r}"
        raise web.HTTPBadRequest(body=to_json({"error": error}), content_type="application/json")
    return int(text)
