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
from dataclasses import dataclass
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from gateway.connection import Connection, since_of
from gateway.event_log import EventLogs
from gateway.events import frame_of, is_replaceable
from gateway.outbox import Frame
from protocol import UnsendableError, encode_event

log = logging.getLogger(__name__)

PING_EVERY = 25.0  # seconds; below the usual idle limit of proxies
PEER_SILENT = 300.0  # seconds without any frame, pongs included, after which a peer counts as dead
LARGEST_MESSAGE = 4 << 20  # bytes from a client
GOODBYE_TIMEOUT = 0.7  # seconds for all clients to say goodbye when the server stops
CLOSE_TIMEOUT = 2.0  # seconds to wait for the client's half of the closing handshake

# Queue counts sent at once before they are gathered, and the seconds in which one more may go at once. Clients see
# every count of a few prompts in a row; gathering is for floods.
STATUS_BURST = 24
STATUS_INTERVAL = 0.05


@dataclass(slots=True)
class _Status:
    info: dict[str, Any]  # {"exec_info": {…}}


class Hub:
    """All connections of a server.

    greet: called for a new client id, gives the JSON events sent to that connection first.
    features: the object that answers a client's feature flags.
    snapshot: called, on another thread, for a client id whose missed events are not known any more; gives what
        replaces them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        greet: Callable[[str], list[tuple[str, Any]]],
        features: Callable[[], dict[str, Any]],
        snapshot: Callable[[str], dict[str, Any]],
    ):
        self._loop = loop
        self._greet = greet
        self._features = features
        self._snapshot = snapshot
        self._connections: dict[Connection, None] = {}
        self._by_id: dict[str, list[Connection]] = {}  # newest last
        self._receivers: dict[str, tuple[Connection, ...]] = {}  # those of them that get the id's events
        self._logs = EventLogs(self._by_id.__contains__)
        # Faces for custom nodes: client id -> socket, and what its client announced.
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.sockets_metadata: dict[str, dict[str, Any]] = {}
        self.on_leave: list[Callable[[str], None]] = []  # called with a client id that has no connection left
        self._inbox: deque[tuple[Frame, str | None] | _Status] = deque()
        self._lock = threading.Lock()
        self._delivery_due = False
        self._held_status: dict[str, Any] | None = None
        self._status_credit = float(STATUS_BURST)
        self._status_at = 0.0
        self._pinger: asyncio.Task | None = None
        self._snapshots: set[asyncio.Task] = set()  # those that are being made

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def is_connected(self, sid: str) -> bool:
        """Whether a client has a connection. Any thread."""
        return sid in self._receivers

    # --- sending, from any thread ------------------------------------------------------------------

    def send(self, event: str | int, data: Any, sid: str | None = None) -> None:
        """Send an event to the connection of `sid`, or to all. What cannot be encoded is logged."""
        if sid is not None and not isinstance(sid, str):
            log.error("event %r dropped: a client id is a string, not %s", event, type(sid).__name__)
            return
        if sid is None:
            wanted = bool(self._connections)
        else:  # for a client that is away and may ask for it later, what lasts is kept
            wanted = sid in self._receivers or (sid in self._logs and not is_replaceable(event))
        if not wanted:
            return
        try:
            frame = frame_of(event, data)
        except UnsendableError as error:
            log.error("event %r dropped: %s", event, error)
            return
        except Exception:  # an image that does not encode, say: the sender must live on
            log.exception("event %r dropped", event)
            return
        self._post((frame, sid))

    def send_status(self, info: dict[str, Any]) -> None:
        """Tell everyone how many prompts are queued or running. info: `{"exec_info": {"queue_remaining": number}}`."""
        self._post(_Status(info))

    def _post(self, item: tuple[Frame, str | None] | _Status) -> None:
        with self._lock:
            self._inbox.append(item)
            if self._delivery_due:
                return
            self._delivery_due = True
        try:
            if asyncio._get_running_loop() is self._loop:  # which need not be woken, at the price of a system call
                self._loop.call_soon(self._deliver)
            else:
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
                self._on_status(item.info)
                continue
            self._flush_status()  # an event never overtakes the queue count that came before it
            frame, sid = item
            if sid is None:
                self._broadcast(frame)
            else:
                self._to_client(sid, frame)

    def _on_status(self, info: dict[str, Any]) -> None:
        now = self._loop.time()
        earned = (now - self._status_at) / STATUS_INTERVAL
        self._status_credit = min(float(STATUS_BURST), self._status_credit + earned)
        self._status_at = now
        if self._held_status is None:
            if self._status_credit >= 1.0:
                self._status_credit -= 1.0
                self._broadcast_status(info)
                return
            self._loop.call_later(STATUS_INTERVAL, self._flush_status)
        self._held_status = info

    def _flush_status(self) -> None:
        if self._held_status is not None:
            info, self._held_status = self._held_status, None
            self._broadcast_status(info)

    def _broadcast_status(self, info: dict[str, Any]) -> None:
        if self._connections:
            frame, _ = encode_event("status", {"status": info})
            self._broadcast(Frame(frame, replaces=("status",)))

    def _to_client(self, sid: str, frame: Frame) -> None:
        numbered = self._logs.add(sid, frame) if sid in self._logs else frame
        for connection in self._receivers.get(sid, ()):
            connection.put(numbered if connection.numbered else frame)

    def _broadcast(self, frame: Frame) -> None:
        for connection in self._connections:
            connection.put(frame)

    # --- one connection ----------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Handle `GET /ws?clientId=…` until it closes. 400 for a request that is no upgrade.

        Query: `since`, a number: send what the client missed after it; `fanout=1`: leave the id's events to the
        connection that has them, and get them as well.
        """
        since = since_of(request.query)
        # Pings are answered here so that pongs can be seen. Compression would be done per socket, again and again.
        ws = web.WebSocketResponse(autoping=False, compress=False, max_msg_size=LARGEST_MESSAGE, timeout=CLOSE_TIMEOUT)
        await ws.prepare(request)
        sid = request.query.get("clientId") or uuid.uuid4().hex
        connection = Connection(ws, sid, request.transport, self._loop.time())
        connection.shared = request.query.get("fanout", "").lower() in ("1", "true")
        greeting = self._greet(sid)
        # Who asks what was missed is told which node runs in the answer to that.
        for event, data in greeting if since is None else greeting[:1]:
            connection.put(Frame(encode_event(event, data)[0]))
        self._add(connection)
        if since is not None:
            self._catch_up(connection, since)
        writer = asyncio.create_task(connection.write())
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
        """An id's events go to its newest connection, and to all shared ones; when it closes, to the one before it."""
        same_id = self._by_id.get(sid, [])
        shared = [connection for connection in same_id if connection.shared]
        alone = [connection for connection in same_id if not connection.shared][-1:]
        if same_id:
            first = (alone or shared)[-1]
            self._receivers[sid] = (*alone, *shared)
            self.sockets[sid] = first.ws
            self.sockets_metadata[sid] = first.metadata
        else:
            for known in (self._receivers, self.sockets, self.sockets_metadata):
                known.pop(sid, None)

    def _catch_up(self, connection: Connection, since: int | None) -> None:
        """Send what the connection's id missed after number `since`, or what stands for it; number its events.

        Event `resumed` follows what is replayed. Event `snapshot` comes instead if anything may have been lost.
        """
        if connection.is_held:
            return  # a snapshot is on its way
        missed = None if since is None else self._logs.missed(connection.sid, since)
        self._logs.follow(connection.sid)
        connection.numbered = True
        if missed is None:
            connection.hold()
            task = asyncio.create_task(self._send_snapshot(connection, self._logs.last))
            self._snapshots.add(task)  # or nobody but the loop would know it, which forgets
            task.add_done_callback(self._snapshots.discard)
            return
        for frame in missed:
            connection.put(frame)
        connection.put(Frame(encode_event("resumed", {"seq": self._logs.last, "replayed": len(missed)})[0]))

    async def _send_snapshot(self, connection: Connection, number: int) -> None:
        """Send what stands for the events up to a number. What happens while the disk is read is sent after it."""
        try:
            data = await asyncio.to_thread(self._snapshot, connection.sid)
            connection.release(Frame(encode_event("snapshot", {"seq": number, **data})[0]))
        except Exception:  # the client would wait for ever: it shall try again
            log.exception("no snapshot for client %s; disconnecting it", connection.sid)
            connection.abort()

    def _on_text(self, connection: Connection, text: str) -> None:
        """Feature flags, answered if they are the first message that is JSON; `resume`, at any time. Else nothing."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "resume":
            data = message.get("data")
            since = data.get("since") if isinstance(data, dict) else None
            self._catch_up(connection, since if type(since) is int else None)
            return
        first, connection.heard_json = not connection.heard_json, True
        if kind != "feature_flags":
            return
        flags = message.get("data")
        connection.metadata["feature_flags"] = flags if isinstance(flags, dict) else {}
        if first:
            connection.put(Frame(encode_event("feature_flags", self._features())[0]))

    async def _ping_all(self) -> None:
        while True:
            await asyncio.sleep(PING_EVERY)
            now = self._loop.time()
            self._logs.tidy()
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
        connections = list(self._connections)
        closing = [
            asyncio.ensure_future(c.ws.close(code=WSCloseCode.GOING_AWAY, message=b"server shutdown"))
            for c in connections
        ]
        if closing:
            _, silent = await asyncio.wait(closing, timeout=GOODBYE_TIMEOUT)
            for task in silent:  # the close frame is on its way; the client's half of the handshake is not
                task.cancel()
