"""Scripts that packs add to the browser front end (http-api.md section 10)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web

from gateway.files import file_response
from gateway.frontend import inside, script_files
from gateway.openapi import EMPTY, TEXT, array, file
from routes.answers import empty, json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def pack_scripts(web_folders: dict[str, str]) -> list[str]:
    """URLs of all `.js` files in packs' web folders."""
    return [f"/extensions/{quote(pack)}/{name}" for pack, path in web_folders.items() for name in script_files(path)]


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/extensions", "URLs of the scripts the page loads.", answers={200: array(TEXT)})
    async def list_scripts(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        import nodes

        own = await asyncio.to_thread(server.front_end.extension_files)
        return json_answer(own + await asyncio.to_thread(pack_scripts, dict(nodes.EXTENSION_WEB_DIRS)))

    @table.get(
        "/extensions/{pack}/{path:.*}",
        "A file of a pack's web folder.",
        answers={200: file(), 206: file(), 304: EMPTY, 404: EMPTY, 416: EMPTY},
        api=False,
    )
    async def get_file(request: web.Request) -> web.StreamResponse:
        own = server.front_end.find(request.path)
        if own is not None:
            return own
        await server.nodes_ready.wait_async()
        import nodes

        folder = nodes.EXTENSION_WEB_DIRS.get(request.match_info["pack"])
        path = inside(folder, request.match_info["path"]) if folder else None
        return file_response(path) if path and os.path.isfile(path) else empty(404)
