"""The WebSocket hub: who is connected, and how events reach them in order (spec: websocket.md).

Any thread may send. An event is encoded once, in the sending thread, and its bytes are shared by all receivers.
Each connection has an outbox and a writer of its own, so a slow reader holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from gateway.outbox import Frame, Outbox, OutboxOverflow
from protocol import JPEG_IMAGE, BinaryEventTypes, UnsendableError, encode_event

log = logging.getLogger(__name__)

PING_EVERY = 25.0  # seconds; below the usual idle limit of proxies
PEER_SILENT = 300.0  # seconds without any frame, pongs included, after which a peer counts as dead
LARGEST_MESSAGE = 4 << 20  # bytes from a client
CLOSE_TIMEOUT = 2.0  # seconds to wait for the client's half of the closing handshake

# Queue counts sent at once before they are gathered, and the seconds in which one more may go at once.
STATUS_BURST = 8
STATUS_INTERVAL = 0.05


@dataclass(eq=False)
class Connection:
    """One open WebSocket."""

    ws: web.WebSocketResponse
    sid: str
    transport: asyncio.Transport | None
    last_seen: float
    outbox: Outbox = field(default_factory=Outbox)
    metadata: dict[str, Any] = field(default_factory=lambda: {"feature_flags": {}})
    heard_json: bool = False
    writing: bool = False

    def abort(self) -> None:
        """Drop the connection without a closing handshake."""
        if self.transport is not None:
            self.transport.abort()


@dataclass(frozen=True, slots=True)
class _Status:
    remaining: int


def _replace_key(event: str | int, data: Any, frame: bytes) -> Any:
    """What a newer frame of the same key makes superfluous; None for events that must all arrive."""
    if event == "progress" and isinstance(data, dict):
        return event, data.get("prompt_id"), data.get("node")
    if event == "progress_state" and isinstance(data, dict):
        return event, data.get("prompt_id")
    if event in (BinaryEventTypes.PREVIEW_IMAGE, BinaryEventTypes.UNENCODED_PREVIEW_IMAGE):
        # PNG frames are how nodes deliver final images; only samplers' JPEG previews are replaceable.
        return ("preview",) if frame[4:8] == JPEG_IMAGE.to_bytes(4, "big") else None
    if event == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA:
        metadata = data[1] if isinstance(data, tuple) else {}
        return "preview", metadata.get("prompt_id"), metadata.get("node_id")
    return None


class Hub:
    """All connections of a server.

    greet: called for a new client id, gives the JSON events sent to that connection first.
    features: the object that answers a client's feature flags.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        greet: Callable[[str], list[tuple[str, Any]]],
        features: Callable[[], dict[str, Any]],
    ):
        self._loop = loop
        self._greet = greet
        self._features = features
        self._connections: dict[Connection, None] = {}
        self._by_id: dict[str, list[Connection]] = {}  # newest last
        # Faces for custom nodes: client id -> socket, and what its client announced.
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.sockets_metadata: dict[str, dict[str, Any]] = {}
        self.on_leave: list[Callable[[str], None]] = []  # called with a client id that has no connection left
        self._inbox: deque[tuple[Frame, str | None] | _Status] = deque()
        self._lock = threading.Lock()
        self._delivery_due = False
        self._held_status: int | None = None
        self._status_credit = float(STATUS_BURST)
        self._status_at = 0.0
        self._pinger: asyncio.Task | None = None

    # --- sending, from any thread ------------------------------------------------------------------

    def send(self, event: str | int, data: Any, sid: str | None = None) -> None:
        """Send an event to the newest connection of `sid`, or to all. What cannot be encoded is logged."""
        if sid is not None and not isinstance(sid, str):
            log.error("event %r dropped: a client id is a string, not %s", event, type(sid).__name__)
            return
        if not (self._connections if sid is None else sid in self._by_id):
            return
        try:
            frame, binary = encode_event(event, data)
        except UnsendableError as error:
            log.error("event %r dropped: %s", event, error)
            return
        except Exception:  # an image that does not encode, say: the sender must live on
            log.exception("event %r dropped", event)
            return
        self._post((Frame(frame, binary, _replace_key(event, data, frame)), sid))

    def send_status(self, remaining: int) -> None:
        """Tell everyone how many prompts are queued or running."""
        self._post(_Status(remaining))

    def _post(self, item: tuple[Frame, str | None] | _Status) -> None:
        with self._lock:
            self._inbox.append(item)
            if self._delivery_due:
                return
            self._delivery_due = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            log.debug("the event loop is closed; events are dropped")

    # --- delivery, on the loop ---------------------------------------------------------------------

    def _deliver(self) -> None:
        with self._lock:
            items, self._inbox = self._inbox, deque()
            self._delivery_due = False
        for item in items:
            if isinstance(item, _Status):
                self._on_status(item.remaining)
                continue
            self._flush_status()  # an event never overtakes the queue count that came before it
            frame, sid = item
            if sid is None:
                self._broadcast(frame)
            elif sid in self._by_id:
                self._put(self._by_id[sid][-1], frame)

    def _on_status(self, remaining: int) -> None:
        now = self._loop.time()
        earned = (now - self._status_at) / STATUS_INTERVAL
        self._status_credit = min(float(STATUS_BURST), self._status_credit + earned)
        self._status_at = now
        if self._held_status is None:
            if self._status_credit >= 1.0:
                self._status_credit -= 1.0
                self._broadcast_status(remaining)
                return
            self._loop.call_later(STATUS_INTERVAL, self._flush_status)
        self._held_status = remaining

    def _flush_status(self) -> None:
        if self._held_status is not None:
            remaining, self._held_status = self._held_status, None
            self._broadcast_status(remaining)

    def _broadcast_status(self, remaining: int) -> None:
        if self._connections:
            frame, _ = encode_event("status", {"status": {"exec_info": {"queue_remaining": remaining}}})
            self._broadcast(Frame(frame, replaces=("status",)))

    def _broadcast(self, frame: Frame) -> None:
        for connection in self._connections:
            self._put(connection, frame)

    def _put(self, connection: Connection, frame: Frame) -> None:
        try:
            connection.outbox.put(frame)
        except OutboxOverflow as error:
            log.warning("client %s does not read its events (%s); disconnecting it", connection.sid, error)
            connection.abort()

    # --- one connection ----------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle `GET /ws?clientId=…` until it closes. 400 for a request that is no upgrade."""
        # Pings are answered here so that pongs can be seen. Compression would be done per socket, again and again.
        ws = web.WebSocketResponse(autoping=False, compress=False, max_msg_size=LARGEST_MESSAGE, timeout=CLOSE_TIMEOUT)
        await ws.prepare(request)
        sid = request.query.get("clientId") or uuid.uuid4().hex
        connection = Connection(ws, sid, request.transport, self._loop.time())
        for event, data in self._greet(sid):
            connection.outbox.put(Frame(encode_event(event, data)[0]))
        self._add(connection)
        writer = asyncio.create_task(self._write(connection))
        try:
            async for message in ws:
                connection.last_seen = self._loop.time()
                if message.type == WSMsgType.TEXT:
                    self._on_text(connection, message.data)
                elif message.type == WSMsgType.PING:
                    await ws.pong(message.data)
        except ConnectionError:
            log.debug("client %s went away while a pong was written", sid)
        finally:
            self._remove(connection)
            writer.cancel()
        return ws

    def _add(self, connection: Connection) -> None:
        self._connections[connection] = None
        self._by_id.setdefault(connection.sid, []).append(connection)
        self._expose(connection.sid)
        if self._pinger is None:
            self._pinger = self._loop.create_task(self._ping_all())

    def _remove(self, connection: Connection) -> None:
        del self._connections[connection]
        same_id = self._by_id[connection.sid]
        same_id.remove(connection)
        if not same_id:
            del self._by_id[connection.sid]
        self._expose(connection.sid)
        if not same_id:
            for callback in self.on_leave:
                callback(connection.sid)

    def _expose(self, sid: str) -> None:
        """The newest connection of an id is the one its events go to; when it closes, the one before it."""
        if sid in self._by_id:
            newest = self._by_id[sid][-1]
            self.sockets[sid] = newest.ws
            self.sockets_metadata[sid] = newest.metadata
        else:
            self.sockets.pop(sid, None)
            self.sockets_metadata.pop(sid, None)

    async def _write(self, connection: Connection) -> None:
        try:
            while True:
                frame = await connection.outbox.get()
                connection.writing = True
                if frame.binary:
                    await connection.ws.send_bytes(frame.data)
                else:
                    await connection.ws.send_frame(frame.data, WSMsgType.TEXT)
                connection.writing = False
        except (ConnectionError, RuntimeError) as error:
            log.debug("writing to client %s ended: %s", connection.sid, error)
            connection.abort()

    def _on_text(self, connection: Connection, text: str) -> None:
        """Feature flags, accepted as the first message that is JSON; all else is ignored."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return
        first, connection.heard_json = not connection.heard_json, True
        if not first or not isinstance(message, dict) or message.get("type") != "feature_flags":
            return
        flags = message.get("data")
        connection.metadata["feature_flags"] = flags if isinstance(flags, dict) else {}
        self._put(connection, Frame(encode_event("feature_flags", self._features())[0]))

    async def _ping_all(self) -> None:
        while True:
            await asyncio.sleep(PING_EVERY)
            now = self._loop.time()
            for connection in list(self._connections):
                if now - connection.last_seen > PEER_SILENT:
                    log.info("client %s has not been heard of for %d s", connection.sid, PEER_SILENT)
                    connection.abort()
                elif not connection.writing:
                    # What goes wrong here, the connection's own reader notices.
                    with contextlib.suppress(ConnectionError, RuntimeError, asyncio.TimeoutError):
                        await asyncio.wait_for(connection.ws.ping(), 1.0)

    async def close(self) -> None:
        """Close every connection: the server is going away."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        closing = [c.ws.close(code=WSCloseCode.GOING_AWAY, message=b"server shutdown") for c in self._connections]
        await asyncio.gather(*closing, return_exceptions=True)
