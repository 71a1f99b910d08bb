"""Uploads into the input, output and temp folders (http-api.md section 8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.features import max_body_size
from gateway.multipart import Form, FormError, read_form
from gateway.openapi import form, one_of
from gateway.stored_files import BadFileName, locate, place, upload_folder, upload_name
from protocol import InvalidJson, from_json
from routes.answers import Refused, file_error, json_answer

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

WHERE = {
    "type": one_of("input", "output", "temp"),
    "subfolder": {"type": "string", "description": "Made when it is not there"},
    "overwrite": {"type": "string", "description": "true or 1 to replace a file of the same name"},
}
STORED = {200: "StoredFile", 400: "Refused", 403: "Refused", 404: "Refused", 409: "Refused", 507: "Refused"}


def original_of(form: Form) -> str:
    """Full path of the image that a mask belongs to, from the field `original_ref`."""
    try:
        reference = from_json(form.text("original_ref"))
    except InvalidJson as error:
        raise Refused(f"original_ref must be a JSON object: {error}") from error
    if not isinstance(reference, dict):
        raise Refused("original_ref must be a JSON object")
    names = [reference.get("filename"), reference.get("type", "output"), reference.get("subfolder", "")]
    if not all(isinstance(name, str) for name in names):
        raise Refused("original_ref needs filename, type and subfolder as strings")
    try:
        return locate(*names)
    except FileNotFoundError as error:
        raise Refused("the original image does not exist", 404) from error


def mask_into_original(form: Form) -> None:
    """Replace the staged mask by the original image with the mask's alpha."""
    from gateway import images

    original = original_of(form)
    try:
        combined = images.with_mask(original, form.path)
    except images.NotAnImage as error:
        raise Refused(str(error)) from error
    with open(form.path, "wb") as stream:
        stream.write(combined)


def store(form: Form, prepare: Callable[[Form], None] | None) -> dict[str, Any]:
    """Put the staged file where the form says; returns the answer. Blocking."""
    name = upload_name(form.filename or "")
    type_name, overwrite = form.text("type", "input"), form.text("overwrite") in ("true", "1")
    directory, subfolder = upload_folder(type_name, form.text("subfolder"), name)
    if prepare is not None:
        prepare(form)
    name = place(form.path, directory, name, overwrite)
    answer: dict[str, Any] = {"name": name, "subfolder": subfolder, "type": type_name}
    from assets import enabled
    from assets import store as asset_store

    if enabled():
        answer["asset"] = asset_store().add_file(os.path.join(directory, name), tags=[type_name, "uploaded"])
    return answer


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    limit = max_body_size(server.args)

    async def upload(request: web.Request, prepare: Callable[[Form], None] | None) -> web.Response:
        try:
            with await read_form(request, "image", limit) as form:
                if form.path is None:
                    raise Refused("the form has no file in the field image")
                return json_answer(await asyncio.to_thread(store, form, prepare))
        except (FormError, BadFileName) as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise file_error(error) from error

    @table.post(
        "/upload/image",
        "Store a file; another one of the same name is kept, unless overwrite is given.",
        body=form("image", **WHERE),
        answers=STORED,
    )
    async def upload_image(request: web.Request) -> web.Response:
        return await upload(request, None)

    @table.post(
        "/upload/mask",
        "Store an image that has the alpha channel of the uploaded one.",
        body=form("image", **WHERE, original_ref={"type": "string", "description": "JSON: filename, type, subfolder"}),
        answers=STORED,
    )
    async def upload_mask(request: web.Request) -> web.Response:
        return await upload(request, mask_into_original)
