"""Whether the server is well: its store, its queue, its worker; and whether it is up and ready, for orchestrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from jobs.health import health, not_ready
from routes.answers import json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

RETRY_SECONDS = 1  # loading nodes takes seconds


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    async def answer(request: web.Request) -> web.Response:
        return json_answer(health(server))

    summary = "Whether the server is well, or goes on with less than it should have."
    table.get("/health", summary, answers={200: "Health"})(answer)
    table.get("/healthz", summary, answers={200: "Health"})(answer)

    @table.get(
        "/health/live",
        "Answers as soon as the server listens, and as long as it answers anything.",
        answers={200: "Ready"},
    )
    async def live(request: web.Request) -> web.Response:
        return json_answer({"ready": True})

    @table.get("/health/ready", "Whether a prompt sent now will be run.", answers={200: "Ready", 503: "Ready"})
    async def ready(request: web.Request) -> web.Response:
        reason = not_ready(server)
        if reason is None:
            return json_answer({"ready": True})
        answer = json_answer({"ready": False, "reason": reason}, 503)
        answer.headers["Retry-After"] = str(server.retry_after or RETRY_SECONDS)
        return answer
