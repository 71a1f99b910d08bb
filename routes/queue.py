"""The queue, interrupting and freeing memory (http-api.md section 3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import EMPTY, JSON, REFUSED, Body
from protocol import InvalidJson, from_json
from routes.answers import Refused, actor_of, empty, json_body, read_json, read_object, stored, text_list

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/queue", "What runs, and what waits.", answers={200: "Queue"})
    async def get_queue(request: web.Request) -> web.Response:
        # Joining the prompts of a long queue takes a while; the loop has sockets to serve.
        return json_body(await asyncio.to_thread(server.prompt_queue.queue_json))

    @table.post("/queue", "Drop waiting prompts.", body="Removal", answers={200: EMPTY, **REFUSED})
    async def change_queue(request: web.Request) -> web.Response:
        body = await read_object(request)
        ids = set(text_list(body["delete"], "delete")) if body.get("delete") is not None else set()
        if body.get("clear"):
            server.prompt_queue.wipe_queue(actor_of(request))
        if ids:
            server.prompt_queue.delete_queue_items(ids, actor_of(request))
        await stored(server)
        return empty()

    @table.post(
        "/interrupt",
        "Interrupt what runs, or only one prompt.",
        body=Body({JSON: "InterruptRequest"}, required=False),
        answers={200: EMPTY, **REFUSED},
    )
    async def interrupt(request: web.Request) -> web.Response:
        try:
            body = from_json(await request.read())
        except InvalidJson:
            body = {}  # old clients send nothing, or anything
        if not isinstance(body, dict):
            raise Refused("the body must be a JSON object or empty")
        prompt_id = body.get("prompt_id")
        if prompt_id is not None and not isinstance(prompt_id, str):
            raise Refused("prompt_id must be a string")
        if server.prompt_queue.interrupt(actor_of(request), prompt_id or None):
            await stored(server)
        return empty()

    @table.post("/free", "Free memory, once nothing runs.", body="FreeRequest", answers={200: EMPTY, **REFUSED})
    async def free(request: web.Request) -> web.Response:
        body = await read_json(request)
        if not isinstance(body, dict):
            raise Refused("the body must be a JSON object")
        for flag in ("unload_models", "free_memory"):
            if body.get(flag):
                server.prompt_queue.set_flag(flag, True)
        return empty()
