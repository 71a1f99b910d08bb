"""Example workflows, translations, subgraphs, and the template and docs packages (http-api.md section 11)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway import pack_contents
from gateway.files import file_response
from gateway.frontend import inside, package_folder
from gateway.openapi import EMPTY, OBJECT, TEXT, array, file
from routes.answers import empty, json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

# The templates are spread over several packages; each keeps its files in a folder `templates`.
TEMPLATE_PACKAGES = (
    "comfyui_workflow_templates_json",
    "comfyui_workflow_templates_core",
    "comfyui_workflow_templates_media_api",
    "comfyui_workflow_templates_media_image",
    "comfyui_workflow_templates_media_other",
    "comfyui_workflow_templates_media_video",
    "comfyui_workflow_templates_media_assets_01",
    "comfyui_workflow_templates_media_assets_02",
    "comfyui_workflow_templates",
)
DOCS_PACKAGE = "comfyui_embedded_docs"
A_FILE = {200: file(), 206: file(), 304: EMPTY, 404: EMPTY, 416: EMPTY}


class _Once:
    """Computes something in a thread, at the first request, once."""

    def __init__(self, compute: Any):
        self._compute = compute
        self._task: asyncio.Task | None = None

    async def get(self) -> Any:
        if self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._compute))
        return await asyncio.shield(self._task)


def from_folders(folders: list[str], relative: str) -> web.StreamResponse:
    """The file of that name in the first folder that has it, or 404."""
    for folder in folders:
        path = inside(folder, relative)
        if path is not None and os.path.isfile(path):
            return file_response(path)
    return empty(404)


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    translations = _Once(pack_contents.translations)
    subgraphs = _Once(pack_contents.subgraphs)
    template_folders = [f for p in TEMPLATE_PACKAGES if (f := package_folder(p, "templates"))]
    docs_folders = [f for f in [package_folder(DOCS_PACKAGE, "docs")] if f]

    @table.get(
        "/workflow_templates",
        "Example workflows of the packs, by pack.",
        answers={200: {"type": "object", "additionalProperties": array(TEXT)}},
    )
    async def list_templates(request: web.Request) -> web.Response:
        return json_answer(await asyncio.to_thread(pack_contents.workflow_templates))

    @table.get(
        "/workflow_templates/{pack}/{name:.+}",
        "One example workflow.",
        answers=A_FILE,
        plain=False,
    )
    async def get_template(request: web.Request) -> web.StreamResponse:
        pack, name = request.match_info["pack"], request.match_info["name"]
        path = await asyncio.to_thread(pack_contents.workflow_template_file, pack, name)
        return empty(404) if path is None else file_response(path)

    @table.get("/i18n", "Translations of the packs, by language.", answers={200: OBJECT})
    async def get_translations(request: web.Request) -> web.Response:
        return json_answer(await translations.get())

    @table.get("/global_subgraphs", "Ready-made subgraphs, by id.", answers={200: "Subgraphs"})
    async def list_subgraphs(request: web.Request) -> web.Response:
        found = await subgraphs.get()
        return json_answer({ident: {k: v for k, v in entry.items() if k != "data"} for ident, entry in found.items()})

    @table.get(
        "/global_subgraphs/{id}",
        "One subgraph with its workflow; null if the id is unknown.",
        answers={200: {"type": ["object", "null"]}},
    )
    async def get_subgraph(request: web.Request) -> web.Response:
        return json_answer((await subgraphs.get()).get(request.match_info["id"]))

    @table.get("/templates/{path:.*}", "A file of the templates.", answers=A_FILE, api=False)
    async def template_file(request: web.Request) -> web.StreamResponse:
        return from_folders(template_folders, request.match_info["path"])

    @table.get("/docs/{path:.*}", "A file of the node help.", answers=A_FILE, api=False)
    async def docs_file(request: web.Request) -> web.StreamResponse:
        return from_folders(docs_folders, request.match_info["path"])
