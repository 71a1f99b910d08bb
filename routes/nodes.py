"""Node definitions and replacements (http-api.md sections 6 and 11)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from aiohttp import ETag, web

from comfy_execution.faults import text_of
from gateway.openapi import EMPTY
from protocol import to_json
from routes.answers import empty, json_answer, json_body

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

log = logging.getLogger(__name__)


_told: dict[str, str] = {}  # class name -> why it has no definition, as the log says already


def definitions(names: Iterable[str]) -> bytes:
    """JSON object of these classes' definitions, read anew; a class that cannot describe itself is left out."""
    import nodes

    parts = []
    for name in names:
        try:
            parts.append(to_json(name) + b":" + to_json(nodes.node_info(name)))
        except BaseException as error:  # some exit the process when a library is missing
            told = f"{type(error).__name__}: {text_of(error)}"
            level = logging.DEBUG if _told.get(name) == told else logging.ERROR  # every page that opens asks again
            _told[name] = told
            log.log(level, "node %s has no usable definition", name, exc_info=True)
    return b"{" + b",".join(parts) + b"}"


def all_definitions() -> tuple[bytes, str]:
    """Definitions of all registered classes, and a tag that changes when they do."""
    import nodes

    body = definitions(list(nodes.NODE_CLASS_MAPPINGS))
    return body, hashlib.blake2b(body, digest_size=16).hexdigest()


class _Shared:
    """Computes something in a thread, once for all who ask while it is being computed.

    Who asks while a computation is under way gets the next one: the first may have looked at files too early.
    """

    def __init__(self, compute: Callable[[], Any]):
        self._compute = compute
        self._running: asyncio.Task | None = None
        self._next: asyncio.Task | None = None

    async def get(self) -> Any:
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task | None) -> Any:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await asyncio.to_thread(self._compute)


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""
    shared = _Shared(all_definitions)

    @table.get("/object_info", "Definitions of all nodes.", answers={200: "NodeDefinitions", 304: EMPTY})
    async def get_all(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        body, tag = await shared.get()
        # Classes may answer anything at any time, so they are asked each time; the megabyte need not travel.
        known = {known.value for known in request.if_none_match or ()} & {tag, "*"}
        answer = empty(304) if known else json_body(body)
        answer.etag = ETag(tag, is_weak=True)  # weak, as the bytes may be compressed on the way
        answer.headers["Cache-Control"] = "no-cache"  # that is: ask whether it has changed
        return answer

    @table.get(
        "/object_info/{class_name}",
        "Definition of one node; an empty object if the class is unknown.",
        answers={200: "NodeDefinitions"},
    )
    async def get_one(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        import nodes

        name = request.match_info["class_name"]
        known = [name] if name in nodes.NODE_CLASS_MAPPINGS else []
        return json_body(await asyncio.to_thread(definitions, known))

    @table.get("/custom_nodes", "Custom node packs and how they load.", answers={200: "CustomNodePacks"}, plain=False)
    async def packs(request: web.Request) -> web.Response:
        import custom_packs

        listed = [record.as_dict() for record in list(custom_packs.PACKS.values())]
        return json_answer({"ready": server.nodes_ready.is_set(), "packs": listed})

    @table.get(
        "/node_replacements",
        "Nodes that take the place of old ones.",
        answers={200: "NodeReplacements"},
    )
    async def replacements(request: web.Request) -> web.Response:
        await server.nodes_ready.wait_async()
        return json_answer(server.node_replace_manager.as_dict())
