"""HTTP, one module per resource. Handlers parse, call one method of the room that knows, and shape the answer.

The contract is spec/http-api.md. Each module has `add_to(table, server)`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from server import PromptServer

Handler = Callable[[web.Request], Any]

MODULES = (
    "prompt",
    "queue",
    "history",
    "jobs",
    "nodes",
    "system",
    "view",
    "upload",
    "models",
    "model_previews",
    "users",
    "settings",
    "userdata",
    "extensions",
    "templates",
    "assets",
    "asset_tags",
    "internal",
    "page",
)


class Table:
    """Collects routes; each is registered as it is and below /api, unless told otherwise."""

    def __init__(self):
        self.routes: list[web.RouteDef] = []

    def _add(self, method: str, path: str, plain: bool, api: bool) -> Callable[[Handler], Handler]:
        def decorate(handler: Handler) -> Handler:
            add = web.get if method == "GET" else lambda p, h: web.route(method, p, h)
            if plain:
                self.routes.append(add(path, handler))
            if api:
                self.routes.append(add("/api" + path, handler))
            return handler

        return decorate

    def get(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of GET, and HEAD."""
        return self._add("GET", path, plain, api)

    def post(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of POST."""
        return self._add("POST", path, plain, api)

    def put(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of PUT."""
        return self._add("PUT", path, plain, api)

    def patch(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of PATCH."""
        return self._add("PATCH", path, plain, api)

    def delete(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of DELETE."""
        return self._add("DELETE", path, plain, api)

    def head(self, path: str, plain: bool = True, api: bool = True) -> Callable[[Handler], Handler]:
        """Decorate a handler of HEAD alone."""
        return self._add("HEAD", path, plain, api)


def add_to(app: web.Application, server: PromptServer) -> None:
    """Register every route with the application."""
    table = Table()
    for name in MODULES:
        import_module(f"routes.{name}").add_to(table, server)
    app.add_routes(table.routes)
