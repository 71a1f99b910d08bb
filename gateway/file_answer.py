"""An answer that is a file on the disk: whole, in part, or word that the client has it already.

Differs from aiohttp's `FileResponse` in what that leaves out: `If-Range` with a tag, several ranges at once, HEAD. And
a file beside it of the same name with `.gz` or `.br` is another file, not this one compressed.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import Any, BinaryIO

from aiohttp import web

from gateway.conditions import Part, Version, part_of

# Opening a pipe must not wait for who writes into it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class FileAnswer(web.StreamResponse):
    """Sends a file. 404 if there is none, 403 if it may not be read or is no regular file."""

    def __init__(self, path: str, headers: dict[str, str]):
        super().__init__(headers=headers)
        self._path = path

    async def prepare(self, request: web.BaseRequest) -> Any:
        """Send everything: headers and content."""
        if self.prepared:
            return await super().prepare(request)
        try:
            file, found = await asyncio.to_thread(_opened, self._path)
        except OSError as error:
            return await self._bare(request, 403 if isinstance(error, PermissionError) else 404)
        try:
            if not stat.S_ISREG(found.st_mode):
                return await self._bare(request, 403)
            return await self._send(request, file, found)
        finally:
            file.close()

    async def _bare(self, request: web.BaseRequest, status: int) -> Any:
        self.headers.pop("Content-Disposition", None)
        self.headers.pop("Content-Type", None)
        self.set_status(status)
        self.content_length = 0
        return await super().prepare(request)

    async def _send(self, request: web.BaseRequest, file: BinaryIO, found: os.stat_result) -> Any:
        version = Version(f"{found.st_mtime_ns:x}-{found.st_size:x}", found.st_mtime_ns // 10**9)
        part = part_of(request.method, request.headers, version, found.st_size)
        if part.status == 416:
            self.headers["Content-Range"] = f"bytes */{found.st_size}"
        if part.status in (412, 416):
            return await self._bare(request, part.status)
        self.set_status(part.status)
        self.etag = version.tag
        self.last_modified = version.changed
        self.headers["Accept-Ranges"] = "bytes"
        if part.status == 206:
            last = part.first + part.count - 1
            self.headers["Content-Range"] = f"bytes {part.first}-{last}/{found.st_size}"
        if part.status != 304:
            self.content_length = part.count
        writer = await super().prepare(request)
        if part.count and request.method != "HEAD":
            await self._copy(request, file, part)
        return writer

    async def _copy(self, request: web.BaseRequest, file: BinaryIO, part: Part) -> None:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client went away")
        sent = await asyncio.get_running_loop().sendfile(transport, file, part.first, part.count)
        if sent < part.count:
            # The file got shorter meanwhile. On an open connection the client would wait for the rest.
            transport.abort()
            raise ConnectionAbortedError(f"{self._path} got shorter while it was sent")


def _opened(path: str) -> tuple[BinaryIO, os.stat_result]:
    handle = os.open(path, _FLAGS)
    try:
        return os.fdopen(handle, "rb"), os.fstat(handle)
    except BaseException:
        os.close(handle)
        raise
