"""HTTP, one module per resource. Handlers parse, call one method of the room that knows, and shape the answer.

The contract is spec/http-api.md. Each module has `add_to(table, server)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.openapi import Operation

if TYPE_CHECKING:
    from server import PromptServer

Handler = Callable[[web.Request], Any]

MODULES = (
    "prompt",
    "queue",
    "queue_control",
    "history",
    "jobs",
    "health",
    "metrics",
    "job_control",
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
    "openapi",
    "page",
)


class Table:
    """Collects routes; each is registered as it is and below /api, unless told otherwise.

    A route is declared with what OpenAPI says about it: a summary, and by keyword `params`, `body` and `answers` as
    `gateway.openapi.Operation` takes them. `plain=False`: only below /api; `api=False`: not below /api.
    """

    def __init__(self):
        self.routes: list[web.RouteDef] = []
        self.operations: list[Operation] = []
        self.resources: dict[str, str] = {}  # module -> first line of its docstring

    def _add(
        self,
        method: str,
        path: str,
        summary: str | None,
        plain: bool = True,
        api: bool = True,
        **declared: Any,
    ) -> Callable[[Handler], Handler]:
        paths = [prefix + path for prefix, wanted in (("", plain), ("/api", api)) if wanted]
        described = Operation(method, paths[0], list(self.resources)[-1], summary, **declared)
        self.operations.append(described)
        self.operations += [replace(described, path=p, alias_of=described.public_path) for p in paths[1:]]

        def decorate(handler: Handler) -> Handler:
            add = web.get if method == "GET" else lambda p, h: web.route(method, p, h)
            self.routes += [add(p, handler) for p in paths]
            return handler

        return decorate

    def get(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of GET, and HEAD."""
        return self._add("GET", path, summary, **declared)

    def post(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of POST."""
        return self._add("POST", path, summary, **declared)

    def put(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of PUT."""
        return self._add("PUT", path, summary, **declared)

    def patch(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of PATCH."""
        return self._add("PATCH", path, summary, **declared)

    def delete(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of DELETE."""
        return self._add("DELETE", path, summary, **declared)

    def head(self, path: str, summary: str | None = None, **declared: Any) -> Callable[[Handler], Handler]:
        """Decorate a handler of HEAD alone."""
        return self._add("HEAD", path, summary, **declared)


def add_to(app: web.Application, server: PromptServer) -> None:
    """Register every route with the application."""
    table = Table()
    for name in MODULES:
        module = import_module(f"routes.{name}")
        table.resources[name] = (module.__doc__ or name).splitlines()[0]
        module.add_to(table, server)
    app.add_routes(table.routes)
