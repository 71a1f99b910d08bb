"""Reading a multipart form with one file: the file goes to disk as it arrives, bounded, never into memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

import folder_paths
from userdata.atomic import FILE_MODE

# What aiohttp's reader raises for bodies that are no proper forms.
_MALFORMED = (ValueError, RuntimeError, AssertionError, LookupError, HttpProcessingError, web.RequestPayloadError)

CHUNK = 1 << 18
LONGEST_TEXT = 1 << 20  # bytes of one text field
MOST_PARTS = 1000
MOST_LINES = 20_000  # boundaries, headers of parts, and what belongs to no part
TURN = 16  # reads after which others get their turn, though there is more to read


class FormError(ValueError):
    """The body is not the form it should be; the message is meant for the client."""


class NotMultipart(FormError):
    """The content type is not multipart/form-data."""


class _Body:
    """A request's body for aiohttp's reader, which takes what has arrived in one go however many parts that makes.

    limit: bytes, all of the form counted; 0: any number.
    """

    def __init__(self, stream: StreamReader, limit: int):
        self._stream = stream
        self._limit = limit
        self._size = self._lines = self._reads = 0

    async def _counted(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._limit and self._size > self._limit:
            raise web.HTTPRequestEntityTooLarge(max_size=self._limit, actual_size=self._size)
        self._reads += 1
        if self._reads % TURN == 0:
            await asyncio.sleep(0)
        return data

    async def read(self, size: int = -1) -> bytes:
        return await self._counted(await self._stream.read(size))

    async def readline(self, **options: Any) -> bytes:
        self._lines += 1
        if self._lines > MOST_LINES:
            raise FormError(f"the form has more than {MOST_LINES} lines besides its values")
        return await self._counted(await self._stream.readline(**options))

    def unread_data(self, data: bytes) -> None:
        self._size -= len(data)
        self._stream.unread_data(data)

    def at_eof(self) -> bool:
        return self._stream.at_eof()


@dataclass
class Form:
    """texts: field name -> values, in order. path, filename, mime: the staged file, None without one.

    Use as a context manager: leaving it deletes the staged file if it is still there.
    """

    texts: dict[str, list[str]] = field(default_factory=dict)
    path: str | None = None
    filename: str | None = None
    mime: str | None = None
    size: int = 0

    def text(self, name: str, default: str = "") -> str:
        """The last value of a text field."""
        return self.texts.get(name, [default])[-1]

    def __enter__(self) -> Form:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.path is not None and os.path.exists(self.path):
            os.unlink(self.path)


async def read_form(request: web.Request, file_field: str, limit: int) -> Form:
    """Read the whole form; the first file in `file_field` is staged in the temp folder.

    Raises NotMultipart, FormError, and HTTPRequestEntityTooLarge beyond `limit` bytes (0: any size).
    """
    if not request.content_type.startswith("multipart/"):
        raise NotMultipart("expected a multipart/form-data body")
    if limit and request.content_length is not None and request.content_length > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=request.content_length)
    form = Form()
    try:
        reader = MultipartReader(request.headers, _Body(request.content, limit))
        parts = 0
        while (part := await reader.next()) is not None:
            parts += 1
            if parts > MOST_PARTS:
                raise FormError(f"the form has more than {MOST_PARTS} parts")
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise FormError("a part of the form has no name")
            if part.filename is None:
                await _read_text(part, form)
            else:
                await _read_file(part, form, stage=part.name == file_field and form.path is None)
    except _MALFORMED as error:
        form.__exit__()
        raise error if isinstance(error, FormError) else FormError(f"malformed form: {error}") from error
    except BaseException:
        form.__exit__()
        raise
    return form


async def _read_text(part: BodyPartReader, form: Form) -> None:
    data = bytearray()
    while chunk := await part.read_chunk(CHUNK):
        data += chunk
        if len(data) > LONGEST_TEXT:
            raise FormError(f"the field {part.name!r} is longer than {LONGEST_TEXT} bytes")
    form.texts.setdefault(part.name or "", []).append(data.decode("utf-8", "replace"))


async def _read_file(part: BodyPartReader, form: Form, stage: bool) -> None:
    out = None
    if stage:
        folder = folder_paths.get_temp_directory()
        os.makedirs(folder, exist_ok=True)
        handle, form.path = tempfile.mkstemp(prefix=".upload-", dir=folder)
        os.chmod(form.path, FILE_MODE)
        out = os.fdopen(handle, "wb")
        form.filename, form.mime = part.filename, part.headers.get("Content-Type")
    try:
        while chunk := await part.read_chunk(CHUNK):
            if out is not None:
                form.size += len(chunk)
                out.write(chunk)
    finally:
        if out is not None:
            out.close()
