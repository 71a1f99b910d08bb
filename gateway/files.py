"""Answering with a file: content types that do not depend on the machine, and nothing a browser would run.

Sources: spec/http-api.md sections 8 and 9.
"""

from __future__ import annotations

import mimetypes
import os
import re
from urllib.parse import quote

from gateway.file_answer import FileAnswer

# The system's table varies between machines and is often wrong about scripts.
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".json": "application/json",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".xml": "application/xml",
    ".txt": "text/plain",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".ico": "image/x-icon",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".mov": "video/quicktime",
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".m4a": "audio/mp4",
    ".ttf": "font/ttf",
    ".otf": "font/otf",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".glb": "model/gltf-binary",
    ".gltf": "model/gltf+json",
    ".zip": "application/zip",
    ".pdf": "application/pdf",
}
OCTET_STREAM = "application/octet-stream"

_ACTIVE = {
    "text/html",
    "text/html-sandboxed",
    "application/hta",
    "text/css",
    "text/xml",
    "text/xsl",
    "application/xml",
    "text/cache-manifest",
}
# JavaScript has a dozen names (WHATWG MIME Sniffing 4.6); parts of a multipart document may be of any type.
_ACTIVE_KINDS = re.compile(r".*(javascript|ecmascript|jscript|livescript).*|.*\+xml|multipart/.*|message/.*", re.DOTALL)


def content_type(name: str) -> str:
    """MIME type by extension; application/octet-stream when unknown."""
    extension = os.path.splitext(name)[1].lower()
    return _TYPES.get(extension) or mimetypes.guess_type(name)[0] or OCTET_STREAM


def is_active(mime: str) -> bool:
    """Whether a browser could run such content in the server's origin."""
    mime = mime.split(";")[0].strip().lower()
    return mime in _ACTIVE or _ACTIVE_KINDS.fullmatch(mime) is not None


def disposition(name: str, kind: str = "") -> str:
    """A `Content-Disposition` naming the file; names beyond ASCII are added in RFC 5987 form.

    kind: `attachment`, `inline`, or nothing.
    """
    printable = "".join(c for c in name if c.isprintable() and c not in "\r\n")
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    plain = escaped.encode("ascii", "replace").decode()
    parts = [kind] if kind else []
    parts.append(f'filename="{plain}"')
    if plain != escaped:
        parts.append(f"filename*=UTF-8''{quote(printable, safe='')}")
    return "; ".join(parts)


def file_response(path: str, headers: dict[str, str] | None = None, mime: str | None = None) -> FileAnswer:
    """A file as it is, with ranges, `Etag` and `Last-Modified`; type by extension unless given."""
    return FileAnswer(path, {"Content-Type": mime or content_type(path), **(headers or {})})


def user_file_response(path: str, name: str, fetch_dest: str = "", mime: str | None = None) -> FileAnswer:
    """A file that a user or a node has made: active content becomes a download (spec: GET /view).

    fetch_dest: the request's `Sec-Fetch-Dest`; an SVG fetched for an `<img>` cannot run scripts and stays one.
    """
    mime = mime or content_type(name)
    headers = {"X-Content-Type-Options": "nosniff"}
    if not is_active(mime):
        headers["Content-Disposition"] = disposition(name)
        return file_response(path, headers, mime)
    headers |= {"Vary": "Sec-Fetch-Dest", "Cache-Control": "no-store"}
    if mime == "image/svg+xml" and fetch_dest == "image":
        headers["Content-Disposition"] = disposition(name)
        return file_response(path, headers, mime)
    headers["Content-Disposition"] = disposition(name, "attachment")
    return file_response(path, headers, OCTET_STREAM)
