"""What the asset routes share: who may use them, and the shape of their errors (http-api.md section 12)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from assets import AssetError, enabled
from gateway.openapi import USER, Parameter
from protocol import InvalidJson, from_json
from routes.answers import file_error, json_answer
from userdata import UnknownUser

if TYPE_CHECKING:
    from server import PromptServer

ID = "{id:[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}}"

FILTERS = (
    USER,
    Parameter("tags_all", description="Comma list; also include_tags"),
    Parameter("tags_any", description="Comma list"),
    Parameter("tags_none", description="Comma list; also exclude_tags"),
    Parameter("name_contains"),
    Parameter("metadata_filter", description="A JSON object: what user_metadata must hold"),
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def asset_errors(*statuses: int) -> dict[int, str]:
    """Declares these errors, and those that every asset route can answer."""
    return dict.fromkeys((*statuses, 403, 503), "AssetError")


def guarded(handler: Handler) -> Handler:
    """503 unless assets are switched on; AssetErrors become answers."""

    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            if not enabled():
                raise AssetError("SERVICE_DISABLED", "assets are off; start the server with --enable-assets", 503)
            return await handler(request)
        except AssetError as error:
            return json_answer(error.as_dict(), error.status)
        except (UnicodeEncodeError, OverflowError) as error:  # what SQLite cannot compare with anything
            answer = AssetError("INVALID_QUERY" if request.method == "GET" else "INVALID_BODY", str(error)[:200])
            return json_answer(answer.as_dict(), answer.status)
        except OSError as error:
            refusal = file_error(error)
            answer = AssetError("STORAGE_ERROR", error.strerror or str(error), refusal.status)
            return json_answer(answer.as_dict(), answer.status)
        except sqlite3.Error as error:
            log.exception("the asset database does not work")
            answer = AssetError("DATABASE_ERROR", f"the asset database does not work: {error}", 503)
            return json_answer(answer.as_dict(), answer.status)

    return wrapped


def owner_of(server: PromptServer, request: web.Request) -> str:
    """The user whose assets a request is about; empty without `--multi-user`. Raises AssetError."""
    if not server.user_manager.multi_user:
        return ""
    try:
        return server.user_manager.get_request_user_id(request)
    except UnknownUser as error:
        raise AssetError("FORBIDDEN", str(error), 403) from error


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object. Raises AssetError."""
    try:
        body = from_json(await request.read())
    except InvalidJson as error:
        raise AssetError("INVALID_JSON", f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise AssetError("INVALID_BODY", "the body must be a JSON object")
    return body
