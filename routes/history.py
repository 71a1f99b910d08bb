"""What has ended: history entries (http-api.md section 4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import EMPTY, INTEGER, REFUSED, Parameter
from routes.answers import empty, int_query, json_body, read_object, stored, text_list

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

AT_ONCE = 100  # prompts that are forgotten in less time than changing threads takes


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    def forget(ids: list[str]) -> None:
        for prompt_id in ids:
            server.prompt_queue.delete_history_item(prompt_id)

    @table.get(
        "/history",
        "What has ended, oldest first.",
        params=(
            Parameter("max_items", INTEGER, "Only that many: the newest, or those from offset on"),
            Parameter("offset", INTEGER, "Skip that many of the oldest; negative: none"),
        ),
        answers={200: "History", **REFUSED},
    )
    async def get_history(request: web.Request) -> web.Response:
        max_items, offset = int_query(request, "max_items"), int_query(request, "offset")
        if offset is None or offset < 0:
            offset = -1
        return json_body(await asyncio.to_thread(server.prompt_queue.history_json, max_items=max_items, offset=offset))

    @table.get(
        "/history/{prompt_id}",
        "How one prompt ended; an empty object while it has not, or is unknown.",
        answers={200: "History"},
    )
    async def get_entry(request: web.Request) -> web.Response:
        prompt_id, queue = request.match_info["prompt_id"], server.prompt_queue
        if queue.history.is_at_hand(prompt_id):
            return json_body(queue.history_json(prompt_id))
        return json_body(await asyncio.to_thread(queue.history_json, prompt_id))

    @table.post("/history", "Forget what has ended.", body="Removal", answers={200: EMPTY, **REFUSED})
    async def change_history(request: web.Request) -> web.Response:
        body = await read_object(request)
        ids = text_list(body["delete"], "delete") if body.get("delete") is not None else []
        if body.get("clear"):
            server.prompt_queue.wipe_history()
        if len(ids) > AT_ONCE:
            await asyncio.to_thread(forget, ids)
        else:
            forget(ids)
        await stored(server)
        return empty()
