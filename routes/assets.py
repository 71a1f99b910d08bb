"""Assets: upload, look up, change, delete (http-api.md section 12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web

from assets import AssetError, store
from assets.hashing import is_hash
from assets.query import Filters, Page
from assets.upload import changes_of, create, create_from_hash
from gateway.features import max_body_size
from gateway.files import OCTET_STREAM, file_response, is_active
from gateway.multipart import FormError, NotMultipart, read_form
from gateway.openapi import EMPTY, TEXT, USER, Parameter, bounded, file, form, one_of
from routes.answers import empty, json_answer
from routes.asset_answers import FILTERS, ID, asset_errors, guarded, owner_of, read_object

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    limit = max_body_size(server.args)

    @table.get(
        "/assets",
        "Assets, page by page.",
        params=(
            *FILTERS,
            Parameter("limit", bounded(1, 500, 20)),
            Parameter("offset", bounded(0)),
            Parameter("after", description="The next_cursor of the page before"),
            Parameter("sort", one_of("created_at", "name", "updated_at", "size", "last_access_time")),
            Parameter("order", one_of("desc", "asc")),
        ),
        answers={200: "AssetList", **asset_errors(400)},
        plain=False,
    )
    @guarded
    async def list_assets(request: web.Request) -> web.StreamResponse:
        filters = Filters.from_query(request.query, owner_of(server, request))
        page = Page.from_query(request.query)
        return json_answer(await asyncio.to_thread(store().list, filters, page))

    @table.post(
        "/assets",
        "Store a file as an asset.",
        params=(USER,),
        body=form(
            "file",
            file_required=False,
            tags={"type": "string", "description": "JSON or a comma list; models, input or output says where to"},
            name=TEXT,
            user_metadata={"type": "string", "description": "A JSON object"},
            hash={"type": "string", "description": "Instead of a file, if its content is known already"},
            mime_type=TEXT,
            preview_id=TEXT,
        ),
        answers={200: "Asset", 201: "Asset", **asset_errors(400, 404, 415)},
        plain=False,
    )
    @guarded
    async def upload(request: web.Request) -> web.StreamResponse:
        owner = owner_of(server, request)
        try:
            with await read_form(request, "file", limit) as form:
                asset, is_new = await asyncio.to_thread(create, store(), form, owner)
        except NotMultipart as error:
            raise AssetError("UNSUPPORTED_MEDIA_TYPE", str(error), 415) from error
        except FormError as error:
            raise AssetError("INVALID_BODY", str(error)) from error
        return json_answer({**asset, "created_new": is_new}, 201 if is_new else 200)

    @table.post(
        "/assets/from-hash",
        "A new asset for content that is known already.",
        params=(USER,),
        body="AssetFromHash",
        answers={201: "Asset", **asset_errors(400, 404)},
        plain=False,
    )
    @guarded
    async def from_hash(request: web.Request) -> web.StreamResponse:
        body, owner = await read_object(request), owner_of(server, request)
        asset = await asyncio.to_thread(create_from_hash, store(), body, owner)
        return json_answer({**asset, "created_new": False}, 201)

    @table.head(
        "/assets/hash/{hash}",
        "Whether content is known.",
        answers={200: EMPTY, 400: EMPTY, 404: EMPTY},
        plain=False,
    )
    @guarded
    async def has_hash(request: web.Request) -> web.StreamResponse:
        content_hash = request.match_info["hash"].lower()
        if not is_hash(content_hash):
            return empty(400)
        return empty(404 if await asyncio.to_thread(store().file_of_hash, content_hash) is None else 200)

    @table.get(
        f"/assets/{ID}",
        "One asset.",
        params=(USER,),
        answers={200: "Asset", **asset_errors(404)},
        plain=False,
    )
    @guarded
    async def get_asset(request: web.Request) -> web.StreamResponse:
        owner = owner_of(server, request)
        return json_answer(await asyncio.to_thread(store().get, request.match_info["id"], owner))

    @table.get(
        f"/assets/{ID}/content",
        "The file of an asset.",
        params=(USER, Parameter("disposition", one_of("attachment", "inline"))),
        answers={200: file(), 206: file(), 304: EMPTY, 416: EMPTY, **asset_errors(404)},
        plain=False,
    )
    @guarded
    async def content(request: web.Request) -> web.StreamResponse:
        owner = owner_of(server, request)
        path, name, mime = await asyncio.to_thread(store().content, request.match_info["id"], owner)
        mime = mime or OCTET_STREAM
        inline = request.query.get("disposition") == "inline" and not is_active(mime)
        headers = {
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": f"{'inline' if inline else 'attachment'}; filename*=UTF-8''{quote(name, safe='')}",
        }
        return file_response(path, headers, OCTET_STREAM if is_active(mime) else mime)

    @table.put(
        f"/assets/{ID}",
        "Change an asset's name, metadata or preview.",
        params=(USER,),
        body="AssetChanges",
        answers={200: "Asset", **asset_errors(400, 404)},
        plain=False,
    )
    @guarded
    async def update(request: web.Request) -> web.StreamResponse:
        changes, owner = changes_of(await read_object(request)), owner_of(server, request)
        return json_answer(await asyncio.to_thread(store().update, request.match_info["id"], owner, changes))

    @table.delete(
        f"/assets/{ID}",
        "Remove an asset; its file stays.",
        params=(USER,),
        answers={204: EMPTY, **asset_errors(404)},
        plain=False,
    )
    @guarded
    async def delete(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(store().delete, request.match_info["id"], owner_of(server, request))
        return empty(204)
