"""What the body of a prompt must be like (http-api.md section 2). What is not raises PromptRefused."""

from __future__ import annotations

import math
import os
import time
import uuid
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aiohttp import web

from jobs import limits, retry
from routes.answers import json_answer, json_type

if TYPE_CHECKING:
    from server import PromptServer

# Keys of extra_data that the server itself reads after the prompt has been queued.
SERVERS_OWN = ("client_id", "create_time", "extra_pnginfo", "force", "preview_method", "retry", "timeout")


class PromptRefused(Exception):
    """A prompt that is not queued; `error` and `node_errors` go to the client."""

    def __init__(
        self,
        type: str,
        message: str,
        details: str = "",
        extra_info: dict[str, Any] | None = None,
        status: int = 400,
        node_errors: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.node_errors = node_errors or {}
        self.headers = headers or {}
        self.error = {"type": type, "message": message, "details": details, "extra_info": extra_info or {}}

    def answer(self) -> web.Response:
        """The HTTP answer."""
        answer = json_answer({"error": self.error, "node_errors": self.node_errors}, self.status)
        answer.headers.update(self.headers)
        return answer


def is_canonical_uuid(value: Any) -> bool:
    """Whether a value is a UUID spelled in lower case with hyphens."""
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def queue_place(body: Any, server: PromptServer) -> tuple[int | float, int | None]:
    """The queue position: the body's own, else the server's counter, negated for `front`. Beside it the counter that it
    was made of, None for the body's own."""
    if isinstance(body, dict) and "number" in body:
        try:
            number = float(body["number"])
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise PromptRefused("invalid_number", "number must be a finite number", repr(body["number"])[:200])
        return number, None
    counter = server.number
    server.number += 1
    return -counter if isinstance(body, dict) and body.get("front") else counter, counter


def checked_graph(graph: Any) -> dict[str, Any]:
    """The prompt if it has the shape of one: an object of objects with a `class_type` and `inputs`."""
    if not isinstance(graph, dict):
        raise PromptRefused("invalid_prompt", f"prompt must be an object of nodes, not {json_type(graph)}")
    if isinstance(graph.get("nodes"), list) and isinstance(graph.get("links"), list):
        raise PromptRefused(
            "invalid_prompt",
            "This is a workflow in the editor's format; export it in API format",
            "prompt has the keys nodes and links",
        )
    for node_id, node in graph.items():
        info = {"node_id": node_id}
        if not isinstance(node, dict):
            raise PromptRefused(
                "invalid_prompt", f"a node must be an object, not {json_type(node)}", f"Node ID '#{node_id}'", info
            )
        for key in ("inputs", "_meta"):
            if key in node and not isinstance(node[key], dict):
                if key == "_meta" and node[key] is None:
                    continue
                what = f"{key} of a node must be an object, not {json_type(node[key])}"
                raise PromptRefused("invalid_prompt", what, f"Node ID '#{node_id}'", info)
    return graph


def checked_targets(targets: Any) -> list[str] | None:
    """`partial_execution_targets`: a list of node ids, or null for all outputs."""
    if targets is None:
        return None
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise PromptRefused("invalid_targets", "partial_execution_targets must be an array of node ids")
    return targets


def checked_force(force: Any, graph: dict[str, Any]) -> bool | list[str]:
    """`force`: which nodes must run although their results are known. True for all, a list of ids, or false."""
    if force is None or isinstance(force, bool):
        return bool(force)
    if not isinstance(force, list) or not all(isinstance(node_id, str) for node_id in force):
        raise PromptRefused("invalid_force", "force must be true, or an array of node ids")
    unknown = [node_id for node_id in force if node_id not in graph]
    if unknown:
        raise PromptRefused("invalid_force", "force names nodes that are not in the prompt", ", ".join(unknown)[:200])
    return force


def private_keys(extra: Any, server: PromptServer) -> list[str]:
    """The keys of extra_data that are for nodes only: those of accounts, and those of `--private-extra-data`."""
    import execution

    if not isinstance(extra, dict):
        return []
    found = [key for key in execution.SENSITIVE_EXTRA_DATA_KEYS if key in extra]
    for pattern in server.args.private_extra_data:
        hidden = [key for key in extra if fnmatchcase(key.lower(), pattern.lower())]
        found += [key for key in hidden if key not in SERVERS_OWN and key not in found]
    return found


_random = bytearray()


def new_prompt_id() -> str:
    """A random UUID. Asking the system for its bytes costs more than all else about it, so they are taken in stock."""
    if len(_random) < 16:
        _random.extend(os.urandom(4096))
    taken = bytes(_random[-16:])
    del _random[-16:]
    return str(uuid.UUID(bytes=taken, version=4))


def extra_data_of(body: dict[str, Any], usage_source: str | None) -> dict[str, Any]:
    """The prompt's `extra_data`, completed with client id, usage source and the time of submission."""
    extra = body.get("extra_data", {})
    if not isinstance(extra, dict):
        raise PromptRefused("invalid_extra_data", f"extra_data must be an object, not {json_type(extra)}")
    extra = dict(extra)
    if body.get("client_id") is not None:
        extra["client_id"] = body["client_id"]
    client_id = extra.get("client_id")
    if client_id is None:
        extra.pop("client_id", None)
    elif not isinstance(client_id, str):
        raise PromptRefused("invalid_client_id", f"client_id must be a string, not {json_type(client_id)}")
    pnginfo = extra.get("extra_pnginfo")
    if pnginfo is None:
        extra.pop("extra_pnginfo", None)
    elif not isinstance(pnginfo, dict):
        raise PromptRefused("invalid_extra_data", "extra_data.extra_pnginfo must be an object")
    try:
        limits.seconds_of(extra.get("timeout"))
    except ValueError as error:
        raise PromptRefused("invalid_timeout", str(error)) from error
    try:
        retry.rule_of(extra.get("retry"), retry.RetryRule())
    except ValueError as error:
        raise PromptRefused("invalid_retry", str(error)) from error
    if usage_source is not None:
        extra.setdefault("comfy_usage_source", usage_source)
    extra["create_time"] = int(time.time() * 1000)
    return extra
