"""Preview images of models (http-api.md section 7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

import folder_paths
from gateway import model_files
from gateway.openapi import EMPTY, file
from routes.answers import Refused, empty

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def preview(path: str) -> bytes | None:
    """The model's preview as WebP, None if it has none."""
    from gateway import images

    source = model_files.preview_source(path)
    try:
        return images.cover(source) if source is not None else None
    except images.NotAnImage:
        return None


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get(
        "/experiment/models/preview/{folder}/{index}/{name:.*}",
        "The image that belongs to a model.",
        answers={200: file(media_type="image/webp"), 400: "Refused", 403: EMPTY, 404: EMPTY},
    )
    async def get_preview(request: web.Request) -> web.Response:
        folder, index, name = (request.match_info[k] for k in ("folder", "index", "name"))
        try:
            number = int(index)
        except ValueError:
            raise Refused(f"{index!r} is not the index of a search path") from None
        if not name:
            raise Refused("the model has no name")
        if folder not in folder_paths.folder_names_and_paths:
            await server.nodes_ready.wait_async()
        paths = folder_paths.folder_names_and_paths.get(folder, ([], set()))[0]
        if folder in model_files.NOT_MODELS or not 0 <= number < len(paths):
            return empty(404)
        try:
            path = folder_paths.safe_join(paths[number], name)
        except folder_paths.PathOutsideFolder:
            return empty(403)
        body = await asyncio.to_thread(preview, path)
        return empty(404) if body is None else web.Response(body=body, content_type="image/webp")
