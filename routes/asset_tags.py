"""Tags of assets, and scanning the folders for files that are no assets yet (http-api.md section 12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from assets import AssetError, enabled, store
from assets.query import Filters, choice, integer
from assets.seeding import ROOTS, AlreadyRunning, Seeder
from assets.upload import checked_tags
from gateway.openapi import BOOLEAN, JSON, USER, Body, Parameter, bounded, one_of
from routes.answers import flag_query, json_answer
from routes.asset_answers import FILTERS, ID, asset_errors, guarded, owner_of, read_object

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def wanted_roots(body: dict[str, Any]) -> list[str]:
    """The folders a scan is to look at; all by default. Raises AssetError."""
    roots = body.get("roots", list(ROOTS))
    if not isinstance(roots, list) or not roots or not all(r in ROOTS for r in roots):
        raise AssetError("INVALID_BODY", f"roots must be an array of {', '.join(ROOTS)}")
    return roots


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    args = server.args
    seeder = Seeder(store(), bool(args.enable_asset_hashing), server.send_sync) if enabled() else None

    @table.post(
        f"/assets/{ID}/tags",
        "Add tags to an asset.",
        params=(USER,),
        body="Tags",
        answers={200: "TagsAdded", **asset_errors(400, 404)},
        plain=False,
    )
    @guarded
    async def add_tags(request: web.Request) -> web.StreamResponse:
        tags, owner = checked_tags((await read_object(request)).get("tags")), owner_of(server, request)
        return json_answer(await asyncio.to_thread(store().add_tags, request.match_info["id"], owner, tags))

    @table.delete(
        f"/assets/{ID}/tags",
        "Remove tags from an asset.",
        params=(USER,),
        body="Tags",
        answers={200: "TagsRemoved", **asset_errors(400, 404)},
        plain=False,
    )
    @guarded
    async def remove_tags(request: web.Request) -> web.StreamResponse:
        tags, owner = checked_tags((await read_object(request)).get("tags")), owner_of(server, request)
        return json_answer(await asyncio.to_thread(store().remove_tags, request.match_info["id"], owner, tags))

    @table.get(
        "/tags",
        "Tags, and how many assets have each.",
        params=(
            USER,
            Parameter("prefix"),
            Parameter("limit", bounded(1, 1000, 100)),
            Parameter("offset", bounded(0)),
            Parameter("order", one_of("count_desc", "name_asc")),
            Parameter("include_zero", BOOLEAN),
        ),
        answers={200: "TagList", **asset_errors(400)},
        plain=False,
    )
    @guarded
    async def list_tags(request: web.Request) -> web.StreamResponse:
        query = request.query
        by_name = choice(query, "order", ("count_desc", "name_asc")) == "name_asc"
        limit, offset = integer(query, "limit", 100, 1, 1000), integer(query, "offset", 0, 0)
        include_zero = query.get("include_zero", "true").lower() != "false"
        prefix = query.get("prefix", "").lower()
        owner = owner_of(server, request)
        return json_answer(
            await asyncio.to_thread(store().list_tags, owner, prefix, limit, offset, by_name, include_zero)
        )

    @table.get(
        "/assets/tags/refine",
        "The tags of the assets that a listing would show.",
        params=FILTERS,
        answers={200: "TagCounts", **asset_errors(400)},
        plain=False,
    )
    @guarded
    async def refine(request: web.Request) -> web.StreamResponse:
        filters = Filters.from_query(request.query, owner_of(server, request))
        return json_answer({"tag_counts": await asyncio.to_thread(store().tag_counts, filters)})

    @table.post(
        "/assets/seed",
        "Look for files that are no assets yet.",
        params=(Parameter("wait", BOOLEAN, "Answer when done"),),
        body=Body({JSON: "ScanRequest"}, required=False),
        answers={200: "ScanStarted", 202: "ScanStarted", 409: "ScanStarted", **asset_errors(400)},
        plain=False,
    )
    @guarded
    async def seed(request: web.Request) -> web.StreamResponse:
        body = await read_object(request) if await request.read() else {}
        try:
            seeder.start(wanted_roots(body))
        except AlreadyRunning:
            return json_answer({"status": "already_running"}, 409)
        if not flag_query(request, "wait"):
            return json_answer({"status": "started"}, 202)
        await asyncio.to_thread(seeder.wait)
        return json_answer({"status": "completed", "progress": seeder.status()["progress"]})

    @table.get("/assets/seed/status", "How far the scan is.", answers={200: "ScanStatus"}, plain=False)
    @guarded
    async def seed_status(request: web.Request) -> web.StreamResponse:
        return json_answer(seeder.status())

    @table.post("/assets/seed/cancel", "Stop the scan.", answers={200: "ScanStarted"}, plain=False)
    @guarded
    async def seed_cancel(request: web.Request) -> web.StreamResponse:
        return json_answer({"status": "cancelling" if seeder.cancel() else "idle"})

    @table.post(
        "/assets/prune",
        "Remove assets whose file is gone.",
        answers={200: "ScanStarted", 409: "ScanStarted"},
        plain=False,
    )
    @guarded
    async def prune(request: web.Request) -> web.StreamResponse:
        if seeder.status()["state"] != "idle":
            return json_answer({"status": "scanning"}, 409)
        return json_answer({"status": "completed", "removed": await asyncio.to_thread(store().prune)})
