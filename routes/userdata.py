"""A user's own files (http-api.md section 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from folder_paths import PathOutsideFolder
from gateway.files import OCTET_STREAM, content_type, file_response, is_active
from gateway.openapi import BOOLEAN, EMPTY, JSON, TEXT, USER, Answer, Body, Parameter, array, file
from routes.answers import Refused, empty, file_error, flag_query, json_answer
from userdata import FileInfo, UnknownUser, UserFiles

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

STYLE_SHEET = "user.css"
OVERWRITE = Parameter("overwrite", {**BOOLEAN, "default": True})
FULL_INFO = Parameter("full_info", BOOLEAN, "Answer an object with size and times instead of the path")
STORED = {"anyOf": [TEXT, {"$ref": "#/components/schemas/UserFile"}]}
TEXT_OR_REFUSED = Answer({"text/plain": TEXT, JSON: "Refused"})
# What `answers_errors` makes of failures; a bare status where clients expect no body.
FAILURES = {
    400: "Refused",
    401: "Refused",
    403: Answer(description="It leads out of the user's folder (no body), or is not permitted"),
    404: Answer(description="There is no such file; with or without a body"),
    409: TEXT_OR_REFUSED,
    507: "Refused",
}
FILE = Parameter("file", TEXT, "Path of the file; for proxies that do not pass `%2F` on", required=True)
LISTED = array({"anyOf": [TEXT, array(TEXT), {"$ref": "#/components/schemas/UserFile"}]})
WRITE: dict[str, Any] = {
    "body": Body({"application/octet-stream": {}}, required=False),
    "answers": {200: STORED, **FAILURES},
}


def text(status: int, message: str) -> web.Response:
    """A plain-text answer, which is what clients of these routes show."""
    return web.Response(status=status, text=message)


def may_overwrite(request: web.Request) -> bool:
    """Whether an existing file may be replaced: unless `overwrite=false`."""
    return request.query.get("overwrite", "").lower() != "false"


def answers_errors(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Turn what the store raises into answers; the routes of version 1 share these."""

    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except UnknownUser as error:
            raise Refused(str(error), 401) from error
        except PathOutsideFolder:
            return empty(403)
        except FileExistsError:
            return text(409, "File already exists")
        except FileNotFoundError:
            return empty(404)
        except IsADirectoryError:
            return text(409, "This is a folder")
        except (OSError, ValueError) as error:
            raise file_error(error) from error

    return wrapped


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    def files(request: web.Request) -> UserFiles:
        return UserFiles(server.user_manager.get_user_folder(request))

    # A path is one segment, with `/` as `%2F`. Proxies may decode that, so behind one plain slashes are taken as well;
    # what a proxy refuses altogether can be sent as the query `file=`.
    file_part, dest_part = ("{file:.+}", "{dest:.+}") if server.args.base_path else ("{file}", "{dest}")

    def name(request: web.Request, part: str = "file") -> str:
        # The router has decoded it once; some clients encode twice.
        value = request.match_info.get(part) or request.query.get(part)
        if not value:
            raise Refused(f"{part} is missing")
        return unquote(value) if "%" in value else value

    def described(request: web.Request, info: FileInfo) -> web.Response:
        return json_answer(asdict(info) if flag_query(request, "full_info") else info.path)

    @table.get(
        "/userdata",
        "Files in one of the user's folders.",
        params=(
            USER,
            Parameter("dir", TEXT, "The folder"),
            Parameter("file", TEXT, "Instead of a folder: this file, as /userdata/{file}"),
            Parameter("recurse", BOOLEAN, "Files of the folders inside, too"),
            Parameter("full_info", BOOLEAN, "Objects with sizes and times instead of paths"),
            Parameter("split", BOOLEAN, "Each path with its parts"),
        ),
        answers={
            200: Answer({JSON: LISTED, "*/*": {}}),
            206: file(),
            304: EMPTY,
            416: EMPTY,
            **FAILURES,
            400: TEXT_OR_REFUSED,
        },
    )
    @answers_errors
    async def list_files(request: web.Request) -> web.StreamResponse:
        if request.query.get("file"):
            return await read(request)
        directory = request.query.get("dir", "")
        if not directory:
            return text(400, "Directory not provided")
        try:
            found = await asyncio.to_thread(files(request).list, directory, flag_query(request, "recurse"))
        except PathOutsideFolder:
            return text(403, "Invalid directory")
        except FileNotFoundError:
            return text(404, "Directory not found")
        if flag_query(request, "full_info"):
            return json_answer([asdict(info) for info in found])
        if flag_query(request, "split"):
            return json_answer([[info.path, *info.path.split("/")] for info in found])
        return json_answer([info.path for info in found])

    @table.get(
        "/v2/userdata",
        "All files and folders below one of the user's folders.",
        params=(USER, Parameter("path", description="The folder; the user's own by default")),
        answers={200: array("UserFolderEntry"), 400: "Refused", 403: "Refused", 404: "Refused", 409: "Refused"},
    )
    async def tree(request: web.Request) -> web.Response:
        path = request.query.get("path", "")
        path = unquote(path) if "%" in path else path
        try:
            return json_answer(await asyncio.to_thread(files(request).tree, path))
        except UnknownUser as error:
            raise Refused(str(error), 403) from error
        except PathOutsideFolder as error:
            raise Refused("the path leads out of the user's folder") from error
        except FileNotFoundError as error:
            if not path:
                return json_answer([])  # a user who has stored nothing yet
            raise Refused("not found", 404) from error
        except NotADirectoryError as error:
            raise Refused("this is not a folder") from error
        except (OSError, ValueError) as error:
            raise file_error(error) from error

    @table.get(
        f"/userdata/{file_part}",
        "A file of the user.",
        params=(USER,),
        answers={200: file(), 206: file(), 304: EMPTY, 416: EMPTY, **FAILURES},
    )
    @answers_errors
    async def read(request: web.Request) -> web.StreamResponse:
        path = await asyncio.to_thread(files(request).existing, name(request))
        headers = {"X-Content-Type-Options": "nosniff"}
        if name(request) == STYLE_SHEET:
            return file_response(path, {**headers, "Content-Disposition": "inline"}, "text/css")
        mime = content_type(path)
        headers["Content-Disposition"] = "attachment"
        return file_response(path, headers, OCTET_STREAM if is_active(mime) else mime)

    @table.post(
        f"/userdata/{file_part}/move/{dest_part}",
        "Move or rename a file.",
        params=(USER, OVERWRITE, FULL_INFO),
        answers={200: STORED, **FAILURES},
    )
    @answers_errors
    async def move(request: web.Request) -> web.StreamResponse:
        overwrite = may_overwrite(request)
        source, target = name(request), name(request, "dest")
        return described(request, await asyncio.to_thread(files(request).move, source, target, overwrite))

    @table.post("/userdata", "As /userdata/{file}.", params=(USER, FILE, OVERWRITE, FULL_INFO), **WRITE)
    @table.post(
        f"/userdata/{file_part}",
        "Store a file: the body is its content.",
        params=(USER, OVERWRITE, FULL_INFO),
        **WRITE,
    )
    @answers_errors
    async def write(request: web.Request) -> web.StreamResponse:
        store = files(request)
        store.path(name(request))  # refuse before reading the body
        data = await request.read()
        overwrite = may_overwrite(request)
        return described(request, await asyncio.to_thread(store.write, name(request), data, overwrite))

    @table.delete("/userdata", "As /userdata/{file}.", params=(USER, FILE), answers={204: EMPTY, **FAILURES})
    @table.delete(f"/userdata/{file_part}", "Delete a file.", params=(USER,), answers={204: EMPTY, **FAILURES})
    @answers_errors
    async def delete(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(files(request).delete, name(request))
        return empty(204)
