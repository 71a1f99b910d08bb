"""The machine and what the server can do (http-api.md section 10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.system_info import memory_report, system_stats
from routes.answers import json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/system_stats", "Versions, memory, devices, and the cache of results.", answers={200: "SystemStats"})
    async def stats(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(await asyncio.to_thread(lambda: system_stats(server.cache_report())))

    @table.get("/memory", "Which models are on which device, and how they came there.", answers={200: "Memory"})
    async def memory(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(await asyncio.to_thread(memory_report))

    @table.get("/features", "What this server can do.", answers={200: "Features"})
    async def features(request: web.Request) -> web.Response:
        return json_answer(server.features())
