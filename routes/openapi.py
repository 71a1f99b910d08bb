"""What this server answers, as an OpenAPI document and as a page that shows it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiohttp import web

from folder_paths import program_path
from gateway.files import file_response
from gateway.frontend import inside
from gateway.openapi import EMPTY, OBJECT, document, file
from protocol import to_json
from routes.answers import empty, json_body

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

PAGE_FOLDER = os.path.join(program_path, "web", "api-docs")
INFO = {
    "title": "Darkroom",
    "version": "0.1.0",
    "description": (
        "A ComfyUI-compatible prompt server. Most routes answer as they are and below /api; GET routes answer HEAD. "
        "JSON bodies are read whatever their content type says."
    ),
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    encoded: list[bytes] = []

    @table.get("/openapi.json", "This document.", answers={200: OBJECT})
    async def openapi(request: web.Request) -> web.Response:
        # Made at the first request: only then is every route in the table.
        if not encoded:
            encoded.append(to_json(document(table.operations, table.resources, INFO)))
        return json_body(encoded[0])

    @table.get("/api-docs", "A page that shows this document.", answers={200: file(media_type="text/html")}, api=False)
    async def page(request: web.Request) -> web.StreamResponse:
        return file_response(os.path.join(PAGE_FOLDER, "index.html"))

    @table.get(
        "/api-docs/{path}",
        "A file of that page.",
        answers={200: file(), 206: file(), 304: EMPTY, 404: EMPTY, 416: EMPTY},
        api=False,
    )
    async def page_file(request: web.Request) -> web.StreamResponse:
        path = inside(PAGE_FOLDER, request.match_info["path"])
        return file_response(path) if path and os.path.isfile(path) else empty(404)
