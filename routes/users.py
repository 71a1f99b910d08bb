"""Users (http-api.md section 9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.openapi import REFUSED, TEXT
from routes.answers import Refused, json_answer, read_object
from userdata import UserNameError

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/users", "How user data is stored, and for whom.", answers={200: "Users"})
    async def list_users(request: web.Request) -> web.Response:
        return json_answer(server.user_manager.describe())

    @table.post("/users", "Add a user; answers the id.", body="NewUser", answers={200: TEXT, **REFUSED})
    async def add_user(request: web.Request) -> web.Response:
        body = await read_object(request)
        try:
            ident = await asyncio.to_thread(server.user_manager.add_user, body.get("username"))
        except UserNameError as error:
            raise Refused(str(error)) from error
        return json_answer(ident)
