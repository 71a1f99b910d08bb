"""Whether the server is well: its store, its queue, its worker (docs/operations.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from jobs.health import health
from routes.answers import json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    async def answer(request: web.Request) -> web.Response:
        return json_answer(health(server))

    summary = "Whether the server is well, or goes on with less than it should have."
    table.get("/health", summary, answers={200: "Health"})(answer)
    table.get("/healthz", summary, answers={200: "Health"})(answer)
