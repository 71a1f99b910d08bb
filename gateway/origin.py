"""Which requests come from a foreign web page, and are refused (spec: http-api.md section 1).

The browser tells where a request comes from (`Sec-Fetch-Site`, `Origin`); other programs send neither and pass.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from aiohttp import web

KNOWN_NAMES = 256  # host names whose resolution is remembered
RESOLVE_TIMEOUT = 2.0
READING = ("GET", "HEAD", "OPTIONS")
_resolvers = ThreadPoolExecutor(2, "resolve")


def split_host(host: str) -> tuple[str, int | None]:
    """(name in lower case, port or None) of a `Host` header. Raises ValueError for nonsense."""
    parts = urlsplit("//" + host)
    return (parts.hostname or "").lower(), parts.port


class LoopbackNames:
    """Tells whether a host name stands for this machine only."""

    def __init__(self):
        self._known: OrderedDict[str, bool] = OrderedDict()

    async def contains(self, name: str) -> bool:
        """Whether `name` is a loopback address, or resolves to nothing else."""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            pass
        if name == "localhost" or name.endswith(".localhost"):
            return True
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        answer = await self._resolve(name)
        self._known[name] = answer
        if len(self._known) > KNOWN_NAMES:
            self._known.popitem(last=False)
        return answer

    @staticmethod
    async def _resolve(name: str) -> bool:
        loop = asyncio.get_running_loop()
        try:
            found = await asyncio.wait_for(loop.getaddrinfo(name, None, type=socket.SOCK_STREAM), RESOLVE_TIMEOUT)
        except (OSError, UnicodeError, asyncio.TimeoutError):
            return False
        addresses = {entry[4][0].split("%")[0] for entry in found}
        return bool(addresses) and all(ipaddress.ip_address(a).is_loopback for a in addresses)


class OriginCheck:
    """Refuses what a page of another site has sent."""

    def __init__(self):
        self._loopback = LoopbackNames()

    async def allows(self, request: web.Request) -> bool:
        """Whether the request may be answered."""
        headers = request.headers
        if headers.get("Sec-Fetch-Site") == "cross-site":
            return False
        host, origin = headers.get("Host"), headers.get("Origin")
        if not host or not origin:
            return True
        if origin == "null" and request.method not in READING:
            return (
                False  # an opaque origin (a sandboxed frame, a local file) may be anybody; whatever the host is called
            )
        try:
            host_name, host_port = split_host(host)
            parts = urlsplit(origin)
            origin_name, origin_port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return False
        if not await self._loopback.contains(host_name):
            return True
        if host_port is None or origin_port is None:
            # An opaque origin ("null": sandboxed frames, local files) has no name and is refused as well.
            return host_name == origin_name
        return (host_name, host_port) == (origin_name, origin_port)
