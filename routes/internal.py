"""Routes for the front end only: logs, folders, file lists (http-api.md section 10)."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

import folder_paths
from gateway.log_feed import terminal_size
from gateway.openapi import EMPTY, REFUSED, TEXT, array
from routes.answers import Refused, empty, json_answer, read_object

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def newest_files(folder: str) -> list[str]:
    """Names of the files at the top of a folder, newest first, without hidden ones."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and folder_paths.is_file(entry):
                    with suppress(OSError):  # deleted just now
                        found.append((-entry.stat().st_mtime_ns, entry.name))
    except FileNotFoundError:
        return []
    return [name for _, name in sorted(found)]


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/internal/logs", "The last lines of the console.", answers={200: TEXT}, api=False)
    async def logs(request: web.Request) -> web.Response:
        return json_answer("".join(f"{e['t']} - {e['m']}" for e in server.log_feed.entries()))

    @table.get(
        "/internal/logs/raw",
        "The last lines of the console, with times.",
        answers={200: "LogEntries"},
        api=False,
    )
    async def raw_logs(request: web.Request) -> web.Response:
        return json_answer({"entries": server.log_feed.entries(), "size": terminal_size()})

    @table.patch(
        "/internal/logs/subscribe",
        "Get new lines of the console over a WebSocket, or no longer.",
        body="LogSubscription",
        answers={200: EMPTY, **REFUSED},
        api=False,
    )
    async def subscribe(request: web.Request) -> web.Response:
        body = await read_object(request)
        client_id, enabled = body.get("clientId"), body.get("enabled")
        if not isinstance(client_id, str) or not isinstance(enabled, bool):
            raise Refused("clientId must be a string and enabled a boolean")
        if enabled:
            server.log_feed.subscribe(client_id)
        else:
            server.log_feed.unsubscribe(client_id)
        return empty()

    @table.get(
        "/internal/folder_paths",
        "Search paths of the model folders.",
        answers={200: {"type": "object", "additionalProperties": array(TEXT)}},
        api=False,
    )
    async def model_folders(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer({k: paths for k, (paths, _) in folder_paths.folder_names_and_paths.items()})

    @table.get(
        "/internal/files/{directory}",
        "Names of the files in a folder, newest first.",
        answers={200: array(TEXT), **REFUSED},
        api=False,
    )
    async def files(request: web.Request) -> web.Response:
        kind = request.match_info["directory"]
        folder = folder_paths.get_directory_by_type(kind)
        if folder is None:
            raise Refused("Invalid directory type")
        return json_answer([f"{name} [{kind}]" for name in await asyncio.to_thread(newest_files, folder)])
