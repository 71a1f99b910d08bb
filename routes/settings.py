"""A user's settings (http-api.md section 9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

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

    @table.get("/settings")
    async def get_all(request: web.Request) -> web.Response:
        return json_answer(await asyncio.to_thread(settings(request).all))

    @table.get("/settings/{id}")
    async def get_one(request: web.Request) -> web.Response:
        stored = await asyncio.to_thread(settings(request).all)
        return json_answer(stored.get(request.match_info["id"]))

    @table.post("/settings")
    async def merge(request: web.Request) -> web.Response:
        changes = await read_object(request)
        await asyncio.to_thread(settings(request).update, changes)
        return empty()

    @table.post("/settings/{id}")
    async def set_one(request: web.Request) -> web.Response:
        value = await read_json(request)
        await asyncio.to_thread(settings(request).update, {request.match_info["id"]: value})
        return empty()
