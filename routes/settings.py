"""A user's settings (http-api.md section 9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import ANYTHING, EMPTY, OBJECT, USER
from routes.answers import Refused, empty, json_answer, read_json, read_object
from userdata import Settings, UnknownUser

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    def settings(request: web.Request) -> Settings:
        try:
            return Settings(server.user_manager.get_user_folder(request))
        except UnknownUser as error:
            raise Refused(str(error), 401) from error

    @table.get("/settings", "All settings.", params=(USER,), answers={200: OBJECT, 401: "Refused"})
    async def get_all(request: web.Request) -> web.Response:
        return json_answer(await asyncio.to_thread(settings(request).all))

    @table.get(
        "/settings/{id}",
        "The value of one setting, or null.",
        params=(USER,),
        answers={200: ANYTHING, 401: "Refused"},
    )
    async def get_one(request: web.Request) -> web.Response:
        stored = await asyncio.to_thread(settings(request).all)
        return json_answer(stored.get(request.match_info["id"]))

    @table.post(
        "/settings",
        "Change several settings.",
        params=(USER,),
        body=OBJECT,
        answers={200: EMPTY, 400: "Refused", 401: "Refused"},
    )
    async def merge(request: web.Request) -> web.Response:
        changes = await read_object(request)
        await asyncio.to_thread(settings(request).update, changes)
        return empty()

    @table.post(
        "/settings/{id}",
        "Change one setting: the body is its value.",
        params=(USER,),
        body=ANYTHING,
        answers={200: EMPTY, 400: "Refused", 401: "Refused"},
    )
    async def set_one(request: web.Request) -> web.Response:
        value = await read_json(request)
        await asyncio.to_thread(settings(request).update, {request.match_info["id"]: value})
        return empty()
