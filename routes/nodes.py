"""Node definitions and replacements (http-api.md sections 6 and 11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web

from protocol import to_json
from routes.answers import json_answer, json_body

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

log = logging.getLogger(__name__)


def definitions(names: Iterable[str]) -> bytes:
    """JSON object of these classes' definitions, read anew; a class that cannot describe itself is left out."""
    import nodes

    parts = []
    for name in names:
        try:
            parts.append(to_json(name) + b":" + to_json(nodes.node_info(name)))
        except Exception:
            log.error("node %s has no usable definition", name, exc_info=True)
    return b"{" + b",".join(parts) + b"}"


def all_definitions() -> bytes:
    """Definitions of all registered classes."""
    import nodes

    return definitions(list(nodes.NODE_CLASS_MAPPINGS))


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/object_info", "Definitions of all nodes.", answers={200: "NodeDefinitions"})
    async def get_all(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_body(await asyncio.to_thread(all_definitions))

    @table.get(
        "/object_info/{class_name}",
        "Definition of one node; an empty object if the class is unknown.",
        answers={200: "NodeDefinitions"},
    )
    async def get_one(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        import nodes

        name = request.match_info["class_name"]
        known = [name] if name in nodes.NODE_CLASS_MAPPINGS else []
        return json_body(await asyncio.to_thread(definitions, known))

    @table.get(
        "/node_replacements",
        "Nodes that take the place of old ones.",
        answers={200: "NodeReplacements"},
    )
    async def replacements(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(server.node_replace_manager.as_dict())
