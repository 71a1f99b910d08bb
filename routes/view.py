"""`GET /view`: files of the input, output and temp folders, as they are or re-encoded (http-api.md section 8)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.files import disposition, user_file_response
from gateway.openapi import EMPTY, TEXT, Parameter, file, one_of
from gateway.stored_files import HASH_PREFIX, BadFileName, OutsideFolder, locate, remove
from routes.answers import Refused, empty, file_error

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def find(query: Mapping[str, str]) -> tuple[str, int]:
    """(full path, 200) of the file a query means, or ("", status of the refusal)."""
    if "filename" not in query:
        return "", 404
    try:
        return locate(query["filename"], query.get("type", "output"), query.get("subfolder", "")), 200
    except OutsideFolder:
        return "", 403
    except BadFileName:
        return "", 400
    except (FileNotFoundError, ValueError, OSError):
        return "", 404


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    place = (
        Parameter("filename", TEXT, "`name`, `name [input]`, `name [output]`, `name [temp]` or `blake3:…`", True),
        Parameter("type", one_of("output", "input", "temp")),
        Parameter("subfolder"),
    )

    @table.get(
        "/view",
        "A file of the output, input or temp folder, as it is or re-encoded.",
        params=(
            *place,
            Parameter("preview", description="`webp` or `jpeg`, then `;quality` if wished: re-encode"),
            Parameter("channel", one_of("rgba", "rgb", "a"), "As PNG without alpha, or with alpha only"),
        ),
        answers={200: file(), 206: file(), 304: EMPTY, 400: EMPTY, 403: EMPTY, 404: EMPTY, 415: "Refused", 416: EMPTY},
    )
    async def view(request: web.Request) -> web.StreamResponse:
        query = request.query
        mime = None
        if query.get("filename", "").startswith(HASH_PREFIX):
            found = await asyncio.to_thread(find_by_hash, query["filename"])
            if found is None:
                return empty(404)
            path, name, mime = found
        else:
            path, status = await asyncio.to_thread(find, query)
            if status != 200:
                return empty(status)
            name = os.path.basename(path)
        if "preview" in query or query.get("channel") in ("rgb", "a"):
            return await converted(path, name, query.get("preview"), query.get("channel"))
        return user_file_response(path, name, request.headers.get("Sec-Fetch-Dest", ""), mime)

    async def converted(path: str, name: str, preview: str | None, channel: str | None) -> web.StreamResponse:
        from gateway import images

        try:
            if preview is not None:
                body, mime = await asyncio.to_thread(images.preview, path, preview, channel)
            else:
                convert = images.without_alpha if channel == "rgb" else images.alpha_only
                body, mime = await asyncio.to_thread(convert, path), "image/png"
        except images.NotAnImage as error:
            raise Refused(str(error), 415) from error
        return web.Response(body=body, content_type=mime, headers={"Content-Disposition": disposition(name)})

    @table.delete(
        "/view",
        "Delete a file of the output, input or temp folder. Folders, hidden files and hashes are refused.",
        params=place,
        answers={204: EMPTY, 400: "Refused", 403: "Refused", 404: "Refused", 409: "Refused"},
    )
    async def delete(request: web.Request) -> web.Response:
        query = request.query
        if "filename" not in query:
            raise Refused("filename is missing")
        try:
            await asyncio.to_thread(
                delete_file, query["filename"], query.get("type", "output"), query.get("subfolder", "")
            )
        except OutsideFolder as error:
            raise Refused(str(error), 403) from error
        except BadFileName as error:
            raise Refused(str(error)) from error
        except FileNotFoundError as error:
            raise Refused("there is no such file", 404) from error
        except OSError as error:
            raise file_error(error) from error
        return empty(204)


def delete_file(filename: str, type_name: str, subfolder: str) -> None:
    """Delete a file, and the assets that it is. Raises as `gateway.stored_files.remove`."""
    from assets import enabled, store

    path = remove(filename, type_name, subfolder)
    if enabled():
        store().forget_path(path)


def find_by_hash(asset_hash: str) -> tuple[str, str, str | None] | None:
    """(path, name, MIME type) of the asset with this content hash, None if there is none."""
    from assets import enabled, store

    return store().file_of_hash(asset_hash) if enabled() else None
