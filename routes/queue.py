"""The queue, interrupting and freeing memory (http-api.md section 3)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from comfy.interrupt import interrupt_current_processing
from gateway.openapi import EMPTY, JSON, REFUSED, Body
from protocol import InvalidJson, from_json
from routes.answers import Refused, empty, json_body, read_json, read_object, text_list

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

log = logging.getLogger(__name__)


def interrupt_running(server: PromptServer, asked_by: str | None, prompt_id: str | None = None) -> bool:
    """Interrupt what runs, or only that prompt. Tells whether there was something to interrupt.

    asked_by: the client's address, for the log.
    """
    queue = server.prompt_queue
    with queue.mutex:  # or the prompt could end, and the next one get the interrupt
        running = queue.running_ids()
        if not running or (prompt_id is not None and prompt_id not in running):
            return False
        interrupt_current_processing()
    log.info("%s interrupts %s", asked_by, prompt_id or ", ".join(running))
    return True


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
            server.prompt_queue.wipe_queue()
        if ids:
            server.prompt_queue.delete_queue_items(ids)
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
        interrupt_running(server, request.remote, prompt_id or None)
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
