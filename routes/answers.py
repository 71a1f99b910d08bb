"""Shapes of answers, and reading bodies: what all route modules share."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution.outcomes import Actor
from protocol import InvalidJson, from_json, to_json

if TYPE_CHECKING:
    from server import PromptServer

log = logging.getLogger(__name__)


def json_body(data: bytes, status: int = 200) -> web.Response:
    """JSON that is encoded already."""
    return web.Response(body=data, status=status, content_type="application/json", charset="utf-8")


def json_answer(value: Any, status: int = 200) -> web.Response:
    """A value as JSON."""
    return json_body(to_json(value), status)


def empty(status: int = 200) -> web.Response:
    """No body."""
    return web.Response(status=status)


class Refused(web.HTTPException):
    """A request that cannot be answered, as `{"error": text}` (plus `extra` keys)."""

    def __init__(self, message: str, status: int = 400, **extra: Any):
        self.status_code = status
        super().__init__(
            body=to_json({"error": message, **extra}),
            headers={"Content-Type": "application/json; charset=utf-8"},
        )


async def read_json(request: web.Request) -> Any:
    """The body as JSON, whatever its content type. Refused (400) if it is none."""
    try:
        return from_json(await request.read())
    except InvalidJson as error:
        raise Refused(f"the body is not valid JSON: {error}") from error


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object. Refused (400) if it is none."""
    value = await read_json(request)
    if not isinstance(value, dict):
        raise Refused(f"the body must be a JSON object, not {json_type(value)}")
    return value


def actor_of(request: web.Request) -> Actor:
    """Who sent a request, for logs and for the ledger of jobs."""
    return Actor(request.remote, f"{request.method} {request.path}")


async def stored(server: PromptServer) -> None:
    """Wait until all that the queue was told is on disk: what is answered to a client survives the process."""
    if server.jobs is not None:
        await server.jobs.stored()


def log_request(request: web.Request, what: str) -> None:
    """Write to the log who did what."""
    log.info("%s %s (%s %s)", request.remote, what, request.method, request.path)


def json_type(value: Any) -> str:
    """What JSON calls the type of a parsed value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


def text_list(value: Any, name: str) -> list[str]:
    """A list of strings from a body. Refused (400) otherwise."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise Refused(f"{name} must be an array of strings")
    return value


def int_query(request: web.Request, name: str) -> int | None:
    """An integer query parameter, None if absent. Refused (400) for anything else."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise Refused(f"{name} must be an integer, not {text[:80]!r}") from None


def flag_query(request: web.Request, name: str) -> bool:
    """A query parameter that switches something on when it is `true` or `1`."""
    return request.query.get(name, "").lower() in ("true", "1")


_STATUS_OF_ERRNO = {
    errno.ENAMETOOLONG: (400, "the name is too long"),
    errno.EINVAL: (400, "the name is not allowed here"),
    errno.EILSEQ: (400, "the name is not allowed here"),
    errno.ENOTDIR: (409, "a part of the path is a file"),
    errno.EISDIR: (409, "this is a folder"),
    errno.ENOTEMPTY: (409, "this is a folder"),
    errno.EEXIST: (409, "this exists already"),
    errno.ENOENT: (404, "not found"),
    errno.EACCES: (403, "permission denied"),
    errno.EPERM: (403, "permission denied"),
    errno.EROFS: (403, "the folder is read-only"),
    errno.ENOSPC: (507, "the disk is full"),
}


def file_error(error: OSError | ValueError) -> Refused:
    """The refusal for what the file system says about a name that a client gave."""
    status, message = _STATUS_OF_ERRNO.get(getattr(error, "errno", None), (400, "the name is not allowed here"))
    return Refused(message, status)
