"""PromptServer: the aiohttp application, the WebSocket hub and `send_sync`; no resource logic.

HTTP answers within a second of the start, before torch and the nodes are imported; what needs nodes awaits
`nodes_ready`. Custom node packs use the names of this module: see spec/node-api.md, section 1.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

import logs
from comfy.cli_args import args
from comfy_execution import forks
from gateway.base_path import answer_below
from gateway.client_faults import soften
from gateway.features import Features, max_body_size
from gateway.frontend import FrontEnd
from gateway.headers import ResponseHeaders
from gateway.hub import Hub
from gateway.log_feed import LogFeed
from gateway.node_replacements import NodeReplaceManager
from gateway.origin import OriginCheck
from gateway.pack_routes import PackRoutes
from gateway.readiness import NodesReady, NodesUnavailable
from gateway.snapshot import snapshot
from jobs import live
from jobs.estimates import RunTimes
from jobs.store import StoreUnavailable
from protocol import BinaryEventTypes, text_frame
from userdata import UserManager

# Packs take `uuid` and `web` from here, too.
__all__ = ["BinaryEventTypes", "PromptServer", "uuid", "web"]

log = logging.getLogger(__name__)

PromptHandler = Callable[[dict[str, Any]], dict[str, Any]]
SHUTDOWN_TIMEOUT = 0.5  # seconds for requests in progress once the server stops
KEEP_ALIVE = 75.0  # seconds an idle connection is kept, as most clients' pools expect


class PromptServer:
    """The server of this process. `PromptServer.instance` is how custom nodes reach it."""

    instance: PromptServer

    def __init__(self, loop: asyncio.AbstractEventLoop):
        PromptServer.instance = self
        self.loop = loop
        self.args = args
        self.supports: list[str] = ["custom_nodes_from_web"]
        self.prompt_queue: Any = None  # set by execution.PromptQueue
        self._jobs: Any = None
        self.run_times = RunTimes()
        self.watchdog: Any = None  # the workers.watchdog.Watchdog; set by main
        self.retry_after: int | None = None  # set once prompts are refused because the server stops: seconds
        self.address, self.port = args.listen.split(",")[0], args.port  # the first that is listened on
        self.number = 0  # the queue position of the next prompt without one of its own
        # The run in progress; written by the worker.
        self.client_id: str | None = None
        self.last_node_id: str | None = None
        self.last_prompt_id: str | None = None
        self.executor: Any = None  # what runs the prompts, once the worker has made it
        self.run_outputs: tuple[str, dict[str, dict[str, Any]]] = ("", {})  # prompt id; node id -> output and meta
        self.on_prompt_handlers: list[PromptHandler] = []
        self.node_replace_manager = NodeReplaceManager()
        self.user_manager = UserManager()
        self.features = Features(args)
        self.front_end = FrontEnd(args)
        self.web_root = self.front_end.root
        self.hub = Hub(loop, self._greeting, self.features, lambda sid: snapshot(self, sid))
        self.log_feed = LogFeed(logs.buffer, self.send_sync, self.hub.is_connected)
        self.hub.on_leave.append(self.log_feed.unsubscribe)
        self.nodes_ready = NodesReady(loop, self._on_nodes_ready)

        self._origins = None if args.enable_cors_header else OriginCheck()
        self._headers = ResponseHeaders(args)
        body_size = max_body_size(args)
        self._core = web.Application(client_max_size=body_size, middlewares=[self._guard, self._dispatch])
        self._core.on_response_prepare.append(self._headers)
        self._packs = PackRoutes(self._core, body_size)
        self.app = self._packs.app
        self.routes = self._packs.table
        import routes

        routes.add_to(self._core, self)
        self._runner: web.AppRunner | None = None

    @property
    def jobs(self) -> Any:
        """The `jobs.ledger.Ledger` that observes the queue; set by main. Every answer carries its instance id."""
        return self._jobs

    @jobs.setter
    def jobs(self, ledger: Any) -> None:
        self._jobs = ledger
        self._headers.add("X-Instance-Id", ledger.instance_id)

    # --- events ------------------------------------------------------------------------------------

    @property
    def sockets(self) -> dict[str, web.WebSocketResponse]:
        """Client id -> its newest socket."""
        return self.hub.sockets

    @property
    def sockets_metadata(self) -> dict[str, dict[str, Any]]:
        """Client id -> `{"feature_flags": {…}}` as its client announced them."""
        return self.hub.sockets_metadata

    def send_sync(self, event: str | int, data: Any, sid: str | None = None) -> None:
        """Send an event to a client, or to all connections. Any thread; never raises for what cannot be sent.

        event: a name with JSON data, or a number of `BinaryEventTypes` with what `protocol.encode_event` takes.
        """
        self.hub.send(event, data, sid)

    async def send(self, event: str | int, data: Any, sid: str | None = None) -> None:
        """As `send_sync`, for coroutines."""
        self.hub.send(event, data, sid)

    send_json = send

    async def send_bytes(self, event: int, data: bytes, sid: str | None = None) -> None:
        """Send a binary frame."""
        self.hub.send(event, data, sid)

    def send_progress_text(self, text: bytes | str, node_id: str, sid: str | None = None) -> None:
        """Show a text on a node: to `sid`, else to the client of the running prompt, else to nobody."""
        sid = sid or self.client_id
        if sid is not None:
            self.hub.send(BinaryEventTypes.TEXT, text_frame(text, node_id)[4:], sid)

    def get_queue_info(self) -> dict[str, Any]:
        """`{"exec_info": {"queue_remaining": pending + running}}`."""
        queue = self.prompt_queue
        info: dict[str, Any] = {"queue_remaining": queue.get_tasks_remaining() if queue is not None else 0}
        if queue is not None and queue.was_paused:  # clients of a server that never pauses see no new key
            info["paused"] = queue.paused
        return {"exec_info": info}

    def queue_updated(self) -> None:
        """Tell every connection how many prompts there are. Called by the queue, holding its lock."""
        self.hub.send_status(self.get_queue_info())

    def worker_state(self) -> dict[str, Any]:
        """What the worker is doing (see `workers.watchdog.Watchdog.state`)."""
        if self.watchdog is None:
            return {"state": "dead", "message": "there is no worker"}
        return self.watchdog.state()

    def cache_report(self) -> dict[str, Any] | None:
        """What is kept of results of nodes (see `PromptExecutor.cache_report`); None before there is a worker."""
        return self.executor.cache_report() if self.executor is not None else None

    def estimates(self) -> dict[str, Any]:
        """When each waiting prompt will start, in their order; no times while the queue is paused. Not for the loop."""
        found = live.waiting(self.prompt_queue, self.run_times)
        return {"paused": self.prompt_queue.paused, "jobs": [{"id": ident, **guess} for ident, guess in found.items()]}

    def live_facts(self) -> dict[str, dict[str, Any]]:
        """What is known of jobs that wait or run, beside what the ledger keeps (see `jobs.live`). Not for the loop."""
        return live.facts(self.prompt_queue, self.run_times)

    def outputs_of_run(self, prompt_id: str) -> dict[str, Any]:
        """What a running prompt has put out so far, as the history will have it: node id -> ui object."""
        running, outputs = self.run_outputs
        if running != prompt_id:
            return {}
        return {node_id: ui["output"] for node_id, ui in outputs.copy().items()}  # the worker adds to it

    def _greeting(self, sid: str) -> list[tuple[str, Any]]:
        first = [("status", {"status": self.get_queue_info(), "sid": sid})]
        if self.client_id == sid and self.last_node_id is not None:
            first.append(("executing", {"node": self.last_node_id}))
        return first

    # --- prompts -----------------------------------------------------------------------------------

    def add_on_prompt_handler(self, handler: PromptHandler) -> None:
        """Let a custom node see, and change, each body of POST /prompt: it gets and returns the object."""
        self.on_prompt_handlers.append(handler)

    def trigger_on_prompt(self, body: Any) -> Any:
        """The body after all prompt handlers; one that raises, or returns no JSON, is logged and skipped."""
        for handler in self.on_prompt_handlers:
            try:
                changed = handler(body)
            except BaseException:
                log.warning("a prompt handler failed", exc_info=True)
                continue
            if isinstance(changed, (dict, list)):
                body = changed
            else:
                log.warning("a prompt handler returned %s instead of the body", type(changed).__name__)
        return body

    # --- nodes -------------------------------------------------------------------------------------

    def add_routes(self) -> None:
        """Register what packs have put into `routes` so far. Called once more when all are loaded."""
        self._packs.add_table()

    def set_nodes_ready(self) -> None:
        """Open `nodes_ready`. Any thread."""
        self.nodes_ready.set()

    def wait_nodes_ready(self, timeout: float | None = None) -> bool:
        """Block a thread until the nodes are loaded."""
        return self.nodes_ready.wait(timeout)

    def _on_nodes_ready(self) -> None:
        self._packs.freeze()

    # --- HTTP --------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method == "OPTIONS":
            return web.Response()
        if args.base_path and request.path == args.base_path:
            raise web.HTTPPermanentRedirect(args.base_path + "/")  # or the page would ask one level too high
        if self._origins is not None and not await self._origins.allows(request):
            log.warning("refused %s %s: it comes from another site", request.method, request.path)
            return web.Response(status=403)
        try:
            response = await handler(request)
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise  # not this client's connection
            log.debug("the client of %s %s went away", request.method, request.path)
            return web.Response(status=400)  # which nobody gets
        except (SystemExit, KeyboardInterrupt):  # of a pack, since signals are handled; the loop would end
            log.exception("%s %s tried to end the server", request.method, request.path)
            response = web.json_response({"error": "the handler of this route tried to end the server"}, status=500)
        except web.RequestPayloadError as error:  # as with compressed bodies that are cut off, or something else
            response = web.json_response({"error": f"the body cannot be read: {str(error)[:200]}"}, status=400)
        self._headers.compress(request, response)
        return response

    @web.middleware
    async def _dispatch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            if request.match_info.http_exception is not None:
                handler = await self._beyond_core(request)
            return await self._packs.wrap(handler)(request)
        except NodesUnavailable as error:
            return web.json_response({"error": f"the nodes cannot be loaded: {error}"}, status=503)
        except StoreUnavailable as error:
            log.error("%s", error)
            return web.json_response({"error": str(error)}, status=503)

    async def _beyond_core(self, request: web.Request) -> Any:
        """The handler for a request that no built-in route takes: a file of the page, a pack's route, or none."""
        refusal = request.match_info.http_exception
        if request.method in ("GET", "HEAD"):
            file = self.front_end.find(request.path)
            if file is not None:
                return _answer(file)
        await self.nodes_ready.wait_async()
        await self._packs.start()
        handler = await self._packs.find(request)
        if handler is not None:
            return handler
        return _answer(web.Response(status=404) if refusal.status == 404 else refusal)

    async def start_multi_address(
        self,
        addresses: list[tuple[str, int]],
        call_on_start: Callable[[str, str, int], None] | None = None,
        verbose: bool = True,
    ) -> None:
        """Listen on all addresses. Raises OSError if one is taken.

        call_on_start: called with (scheme, address, port) for each address.
        """
        self._runner = web.AppRunner(
            self._core, access_log=None, keepalive_timeout=KEEP_ALIVE, shutdown_timeout=SHUTDOWN_TIMEOUT
        )
        await self._runner.setup()
        soften()
        if args.base_path:
            answer_below(self._runner.server, args.base_path)
        context = _tls_context()
        for address, port in addresses:
            site = web.TCPSite(self._runner, address, port, ssl_context=context)
            await site.start()
            for listener in site._server.sockets:  # aiohttp has no other way to them, nor asyncio to what they wrap
                forks.keep_from_children(listener._sock)
            bound = self._runner.addresses[-1][1]  # the system's choice for port 0
            if (address, port) == addresses[0]:
                self.address, self.port = address, bound
            if call_on_start is not None:
                call_on_start("https" if context else "http", address, bound)

    async def start(
        self, address: str, port: int, verbose: bool = True, call_on_start: Callable[..., None] | None = None
    ) -> None:
        """Listen on one address."""
        await self.start_multi_address([(address, port)], call_on_start, verbose)

    async def close(self) -> None:
        """Close all sockets and stop listening."""
        await self.hub.close()
        await self._packs.close()
        if self._runner is not None:
            await self._runner.cleanup()


def _answer(response: web.StreamResponse) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        if isinstance(response, web.HTTPException):
            raise response
        return response

    return handler


def _tls_context() -> ssl.SSLContext | None:
    if not (args.tls_keyfile and args.tls_certfile):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certfile=args.tls_certfile, keyfile=args.tls_keyfile)
    except OSError as error:  # ssl's errors are such, too
        what = f"--tls-certfile {args.tls_certfile} and --tls-keyfile {args.tls_keyfile} cannot be used"
        raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
    return context
