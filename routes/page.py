"""The front-end page and the WebSocket; the page's other files are found in `server.py` (http-api.md section 11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.files import file_response
from gateway.openapi import EMPTY, JSON, TEXT, Answer, Parameter, file, text
from routes.answers import empty
from userdata import UnknownUser

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

STYLE_SHEET = "user.css"


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/", "The page of the front end.", answers={200: file(media_type="text/html"), 304: EMPTY, 404: EMPTY})
    async def index(request: web.Request) -> web.StreamResponse:
        return await server.front_end.index(request)

    @table.get(
        "/user.css",
        "The user's style sheet for the page.",
        api=False,
        answers={200: file(media_type="text/css"), 404: EMPTY},
    )
    async def style_sheet(request: web.Request) -> web.StreamResponse:
        # The page waits for this file, so it must not wait for nodes, as an unknown path would.
        try:
            path = server.user_manager.get_request_user_filepath(request, STYLE_SHEET, create_dir=False)
        except UnknownUser:
            return empty(404)
        return file_response(path) if path is not None and os.path.isfile(path) else empty(404)

    @table.get(
        "/ws",
        "WebSocket with the events of runs.",
        params=(
            Parameter("clientId", description="Made by the server when absent"),
            Parameter("since", description="Continue after this number; 0: tell the state of the client's jobs"),
            Parameter("fanout", description="1: get the client's events beside its other connection"),
        ),
        answers={101: EMPTY, 400: Answer({"text/plain": TEXT, JSON: "Refused"}), 426: text()},
    )
    async def websocket(request: web.Request) -> web.StreamResponse:
        return await server.hub.serve(request)
