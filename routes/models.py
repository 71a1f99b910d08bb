"""Model folders and the files in them (http-api.md section 7)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from aiohttp import web

import folder_paths
from gateway import model_files
from gateway.openapi import EMPTY, OBJECT, TEXT, Parameter, array
from routes.answers import empty, json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    async def is_folder(name: str) -> bool:
        # A folder that is unknown now may be one that a pack is about to add.
        if name not in folder_paths.folder_names_and_paths:
            await server.nodes_ready.wait_async()
        return name in folder_paths.folder_names_and_paths

    @table.get("/models", "Names of the model folders.", answers={200: array(TEXT)})
    async def list_folders(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(list(folder_paths.folder_names_and_paths))

    @table.get("/models/{folder}", "Files of a model folder.", answers={200: array(TEXT), 404: EMPTY})
    async def list_files(request: web.Request) -> web.Response:
        folder = request.match_info["folder"]
        if not await is_folder(folder):
            return empty(404)
        if folder == "custom_nodes":
            return json_answer([])
        return json_answer(await asyncio.to_thread(folder_paths.get_filename_list, folder))

    @table.get("/embeddings", "Names of the embeddings.", answers={200: array(TEXT)})
    async def embeddings(request: web.Request) -> web.Response:
        names = await asyncio.to_thread(folder_paths.get_filename_list, "embeddings")
        return json_answer([os.path.splitext(name)[0] for name in names])

    @table.get(
        "/view_metadata/{folder}",
        "What a safetensors file says about itself.",
        params=(Parameter("filename", TEXT, "Path in the folder", required=True),),
        answers={200: OBJECT, 404: EMPTY},
    )
    async def view_metadata(request: web.Request) -> web.Response:
        filename = request.query.get("filename", "")
        if not filename.endswith(".safetensors") or not await is_folder(request.match_info["folder"]):
            return empty(404)
        path = folder_paths.get_full_path(request.match_info["folder"], filename)
        metadata = await asyncio.to_thread(model_files.header_metadata, path) if path else None
        return empty(404) if metadata is None else json_answer(metadata)

    @table.get(
        "/experiment/models",
        "The model folders with their search paths.",
        answers={200: array("ModelFolder")},
    )
    async def describe_folders(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(model_files.folders())

    @table.get(
        "/experiment/models/{folder}",
        "Files of a model folder with sizes and times.",
        answers={200: array("ModelFile"), 404: EMPTY},
    )
    async def describe_files(request: web.Request) -> web.Response:
        folder = request.match_info["folder"]
        if folder in model_files.NOT_MODELS or not await is_folder(folder):
            return empty(404)
        return json_answer(await asyncio.to_thread(model_files.files, folder))
