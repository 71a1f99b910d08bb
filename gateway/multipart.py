"""Reading a multipart form with one file: the file goes to disk as it arrives, bounded, never into memory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

import folder_paths
from userdata.atomic import FILE_MODE

# What aiohttp's reader raises for bodies that are no proper forms.
_MALFORMED = (ValueError, RuntimeError, AssertionError, LookupError, HttpProcessingError, web.RequestPayloadError)

CHUNK = 1 << 18
LONGEST_TEXT = 1 << 20  # bytes of one text field


class FormError(ValueError):
    """The body is not the form it should be; the message is meant for the client."""


class NotMultipart(FormError):
    """The content type is not multipart/form-data."""


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
    file_fields_seen: set[str] = field(default_factory=set)

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
        reader = await request.multipart()
        used = 0
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise FormError("a part of the form has no name")
            if part.filename is None:
                used = await _read_text(part, form, used, limit)
            else:
                form.file_fields_seen.add(part.name)
                stage = part.name == file_field and form.path is None
                used = await _read_file(part, form, used, limit, stage)
    except _MALFORMED as error:
        form.__exit__()
        raise error if isinstance(error, FormError) else FormError(f"malformed form: {error}") from error
    except BaseException:
        form.__exit__()
        raise
    return form


def _count(used: int, more: int, limit: int) -> int:
    if limit and used + more > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=used + more)
    return used + more


async def _read_text(part: BodyPartReader, form: Form, used: int, limit: int) -> int:
    data = bytearray()
    while chunk := await part.read_chunk(CHUNK):
        used = _count(used, len(chunk), limit)
        data += chunk
        if len(data) > LONGEST_TEXT:
            raise FormError(f"the field {part.name!r} is longer than {LONGEST_TEXT} bytes")
    form.texts.setdefault(part.name or "", []).append(data.decode("utf-8", "replace"))
    return used


async def _read_file(part: BodyPartReader, form: Form, used: int, limit: int, stage: bool) -> int:
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
            used = _count(used, len(chunk), limit)
            if out is not None:
                form.size += len(chunk)
                out.write(chunk)
    finally:
        if out is not None:
            out.close()
    return used
