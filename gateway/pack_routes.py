"""Routes, static folders and middlewares that custom node packs add while the server is already listening.

aiohttp freezes an application's router when it starts. Packs are loaded after that, so they get an application of
their own; it is frozen once all are loaded, and requests that no built-in route matches are looked up in it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from aiohttp import web

log = logging.getLogger(__name__)


class PackRoutes:
    """The application that packs see as `PromptServer.instance.app`, and the table they see as `.routes`."""

    def __init__(self, core: web.Application, client_max_size: int):
        self._core = core
        self.app = web.Application(client_max_size=client_max_size)
        self.table = web.RouteTableDef()
        self._added = 0
        self._started = False

    def add_table(self) -> None:
        """Register the table's new entries, each also below /api. Without effect once frozen."""
        if self.app.frozen:
            return
        entries = list(self.table)[self._added :]
        self._added += len(entries)
        for entry in entries:
            try:
                entry.register(self.app.router)
                self._below_api(entry)
            except Exception:
                log.exception("a custom node's route cannot be added: %r", entry)

    def _below_api(self, entry: web.AbstractRouteDef) -> None:
        if isinstance(entry, web.StaticDef):
            web.static("/api" + entry.prefix, entry.path, **entry.kwargs).register(self.app.router)
        elif isinstance(entry, web.RouteDef) and not entry.path.startswith("/api/"):
            # A name may be registered once only; the plain route has it.
            kwargs = {k: v for k, v in entry.kwargs.items() if k != "name"}
            web.route(entry.method, "/api" + entry.path, entry.handler, **kwargs).register(self.app.router)

    def freeze(self) -> None:
        """Accept what is there; called when all packs are loaded."""
        self.add_table()
        self.app.freeze()

    async def start(self) -> None:
        """Run the packs' start-up callbacks, once."""
        if not self._started:
            self._started = True
            try:
                await self.app.startup()
            except (Exception, SystemExit, KeyboardInterrupt):
                log.exception("a custom node's start-up callback failed")

    async def close(self) -> None:
        """Run the packs' shutdown and cleanup callbacks."""
        if self._started:
            await self.app.shutdown()
            await self.app.cleanup()

    async def find(self, request: web.Request) -> Any | None:
        """The handler a pack has for this request, with `request.match_info` set; None if there is none."""
        match = await self.app.router.resolve(request)
        if match.http_exception is not None:
            # Other methods of a path that a pack owns are 405; nobody's path is None.
            return match.handler if match.http_exception.status == 405 else None
        match.add_app(self.app)
        match.add_app(self._core)
        match.freeze()
        # aiohttp offers no public way to hand a request to another router; this is what its own dispatch does,
        # and `request.match_info` remembers what it was first asked for.
        request._match_info = match
        request._cache.pop("match_info", None)
        return match.handler

    def wrap(self, handler: Any) -> Any:
        """`handler` inside the packs' middlewares, the first registered outermost."""
        if self.app.frozen:
            for middleware in reversed(self.app.middlewares):
                handler = partial(middleware, handler=handler)
        return handler
