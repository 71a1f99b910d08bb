"""The queue, beyond the reference: pausing, moving, and when what waits will start."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution.line import AFTER, BACK, BEFORE, FRONT
from comfy_execution.queue_control import NotPending
from gateway.openapi import JSON, Answer
from routes.answers import Refused, json_answer, json_type, log_request, read_object, stored, text_list

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

_TARGETS = ("number", "to", BEFORE, AFTER)


def ids_of(body: dict[str, Any]) -> list[str]:
    """The `ids` of a body: texts, at least one, each once. Refused (400) otherwise."""
    ids = text_list(body.get("ids"), "ids")
    if not ids:
        raise Refused("ids must not be empty")
    if len(set(ids)) < len(ids):
        raise Refused("ids must not name a prompt twice")
    return ids


def target_of(body: dict[str, Any]) -> tuple[str, Any]:
    """Where a body wants prompts: ("number", number), ("front" or "back", None), ("before" or "after", id).

    Refused (400) if it says nothing, or more than one thing.
    """
    given = [key for key in _TARGETS if body.get(key) is not None]
    if len(given) != 1:
        raise Refused(f"one of {', '.join(_TARGETS)} must be given, not {', '.join(given) or 'none'}")
    key, value = given[0], body[given[0]]
    if key in (BEFORE, AFTER):
        if not isinstance(value, str):
            raise Refused(f"{key} must be the id of a prompt, not {json_type(value)}")
        return key, value
    if value in (FRONT, BACK):
        return value, None
    if key == "to":
        raise Refused(f"to must be {FRONT} or {BACK}, not {value!r}"[:200])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        finite = is_number and math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise Refused(f"number must be a finite number, {FRONT} or {BACK}, not {value!r}"[:200])
    return key, value


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.post(
        "/queue/move",
        "Give waiting prompts another place: all of them, or none.",
        body="Move",
        answers={200: "Moved", 400: "Refused", 409: "NotPending"},
        plain=False,
    )
    async def move(request: web.Request) -> web.Response:
        body = await read_object(request)
        ids, (where, value) = ids_of(body), target_of(body)
        queue = server.prompt_queue
        try:
            moved = queue.set_number(ids, value) if where == "number" else queue.move(ids, where, value)
        except NotPending as error:
            raise Refused(str(error), 409, not_pending=error.states) from error
        except ValueError as error:
            raise Refused(str(error)) from error
        await stored(server)
        log_request(request, f"moves {len(ids)} prompts")
        return json_answer({"moved": [{"id": entry.prompt_id, "number": entry.number} for entry in moved]})

    @table.post("/queue/pause", "Start no more prompts; what runs goes on.", answers={200: "Paused"}, plain=False)
    async def pause(request: web.Request) -> web.Response:
        server.prompt_queue.pause()
        await stored(server)
        log_request(request, "pauses the queue")
        return json_answer({"paused": True})

    @table.post("/queue/resume", "Start prompts again.", answers={200: "Paused"}, plain=False)
    async def resume(request: web.Request) -> web.Response:
        server.prompt_queue.resume()
        await stored(server)
        log_request(request, "resumes the queue")
        return json_answer({"paused": False})

    @table.get(
        "/queue/estimates",
        "When each waiting prompt will start, by how long recent runs of its workflow took.",
        answers={200: Answer({JSON: {"$ref": "#/components/schemas/Estimates"}})},
        plain=False,
    )
    async def estimates(request: web.Request) -> web.Response:
        return json_answer(await asyncio.to_thread(server.estimates))
