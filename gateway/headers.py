"""Headers that do not depend on the route: caching, CORS, content policy, compression (http-api.md section 1)."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import hdrs, web

CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self' data:",
        "frame-src 'self'",
        "object-src 'self'",
        "",
    )
).strip()

_SCRIPT = re.compile(r"(\.js|\.css|(^|/)index[^/]*\.json)$")
_IMAGE = re.compile(r"\.(jpe?g|png|ppm|bmp|pgm|tiff?|webp)$", re.IGNORECASE)
# Named, and not with a weight of 0, which means: anything but this (RFC 9110 12.5.3).
_GZIP = re.compile(r"(^|,)\s*(x-)?gzip\s*(?!\s*;\s*q\s*=\s*0(\.0*)?\s*(,|$))(;|,|$)", re.IGNORECASE)
_FOUND = {*range(200, 207), 301, 308}
_MOVED = {302, 303, 307}


def cache_control(path: str, status: int) -> str | None:
    """The `Cache-Control` of an answer whose handler set none; None to set none."""
    if _SCRIPT.search(path):
        return "no-store"
    if _IMAGE.search(path):
        if status == 404:
            return "public, max-age=3600"
        if status in _FOUND:
            return "public, max-age=86400"
        if status in _MOVED:
            return "no-cache"
    return None


class ResponseHeaders:
    """Adds headers to every answer, errors included. An `on_response_prepare` signal handler."""

    def __init__(self, args: Any):
        self._fixed: dict[str, str] = {}
        self._compress = bool(args.enable_compress_response_body)
        if args.enable_cors_header:
            self._fixed.update(
                {
                    "Access-Control-Allow-Origin": args.enable_cors_header,
                    "Access-Control-Allow-Methods": "POST, GET, DELETE, PUT, OPTIONS, PATCH",
                    "Access-Control-Allow-Headers": "Content-Type, Authorization",
                    "Access-Control-Allow-Credentials": "true",
                }
            )
        if args.disable_api_nodes:
            self._fixed["Content-Security-Policy"] = CONTENT_POLICY

    def add(self, name: str, value: str) -> None:
        """Have one more header on every answer."""
        self._fixed[name] = value

    async def __call__(self, request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        headers.update(self._fixed)
        if hdrs.CACHE_CONTROL not in headers:
            value = cache_control(request.path, response.status)
            if value is not None:
                headers[hdrs.CACHE_CONTROL] = value

    def compress(self, request: web.Request, response: web.StreamResponse) -> None:
        """Have a JSON or text answer gzipped if the command line says so and the client can read it."""
        if not self._compress or not isinstance(response, web.Response) or response.prepared:
            return
        if response.content_type not in ("application/json", "text/plain"):
            return
        response.headers.setdefault(hdrs.VARY, hdrs.ACCEPT_ENCODING)
        if _GZIP.search(request.headers.get(hdrs.ACCEPT_ENCODING, "")):
            response.enable_compression(web.ContentCoding.gzip)
