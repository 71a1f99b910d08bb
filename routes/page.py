"""The front-end page and the WebSocket; the page's other files are found in `server.py` (http-api.md section 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import EMPTY, Parameter, file, text

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/", "The page of the front end.", answers={200: file(media_type="text/html"), 304: EMPTY, 404: EMPTY})
    async def index(request: web.Request) -> web.StreamResponse:
        return await server.front_end.index(request)

    @table.get(
        "/ws",
        "WebSocket with the events of runs.",
        params=(Parameter("clientId", description="Made by the server when absent"),),
        answers={101: EMPTY, 400: text(), 426: text()},
    )
    async def websocket(request: web.Request) -> web.StreamResponse:
        return await server.hub.serve(request)
