"""The front-end page and the WebSocket; the page's other files are found in `server.py` (http-api.md section 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/")
    async def index(request: web.Request) -> web.StreamResponse:
        return await server.front_end.index(request)

    @table.get("/ws")
    async def websocket(request: web.Request) -> web.StreamResponse:
        return await server.hub.serve(request)
