"""Figures for Prometheus (docs/operations.md)."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import text

if TYPE_CHECKING:
    from gateway.metrics import Metrics
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @cache
    def metrics() -> Metrics:
        from gateway.metrics import Metrics  # its library is not needed to start

        return Metrics(server)

    @table.get("/metrics", "Queue, jobs, worker, models and memory in figures.", answers={200: text()})
    async def get_metrics(request: web.Request) -> web.Response:
        from gateway.metrics import CONTENT_TYPE

        figures = await asyncio.to_thread(lambda: metrics().text())
        return web.Response(body=figures, headers={"Content-Type": CONTENT_TYPE})
