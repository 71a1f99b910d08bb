"""Serving below a path: for a reverse proxy that passes the path on instead of taking it away (`--base-path`)."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from yarl import URL


def answer_below(server: web.Server, base: str) -> None:
    """Have a server take `base` off the paths of its requests, before anything else sees them.

    Paths that do not begin with it are answered as they are, so that probes need not know it.
    """
    make_request = server.request_factory

    def without_base(message: Any, *rest: Any) -> web.BaseRequest:
        if message.path.startswith(base + "/"):
            target = message.path[len(base) :]
            path, _, query = target.partition("?")
            url = URL.build(path=path, query_string=query, encoded=True)
            message = message._replace(path=target, url=url)
        return make_request(message, *rest)

    server.request_factory = without_base
