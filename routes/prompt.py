"""Prompts: `POST /prompt` checks and queues one, `GET /prompt` tells how many there are (http-api.md section 2)."""

from __future__ import annotations

import inspect
import logging
import math
import os
import threading
import time
import uuid
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution.prompt_queue import QueueEntry
from gateway.openapi import Parameter
from jobs import limits, retry, submissions
from jobs.ledger import Submission
from protocol import InvalidJson, from_json, to_json
from routes.answers import json_answer, json_type

if TYPE_CHECKING:
    from jobs.job import Job
    from routes import Table
    from server import PromptServer


log = logging.getLogger(__name__)

RETRY_AFTER = "10"  # seconds
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


def refuse_if_stopping(server: PromptServer) -> None:
    """PromptRefused (503) once the server has been told to stop."""
    if server.retry_after is not None:
        headers = {"Retry-After": str(server.retry_after)}
        raise PromptRefused("server_stopping", "the server is stopping", status=503, headers=headers)


def is_canonical_uuid(value: Any) -> bool:
    """Whether a value is a UUID spelled in lower case with hyphens."""
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def queue_number(body: Any, server: PromptServer) -> int | float:
    """The queue position: the body's own, else the server's counter, negated for `front`."""
    if isinstance(body, dict) and "number" in body:
        try:
            number = float(body["number"])
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise PromptRefused("invalid_number", "number must be a finite number", repr(body["number"])[:200])
        return number
    number = server.number
    server.number += 1
    return -number if isinstance(body, dict) and body.get("front") else number


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
    text = taken.hex()
    # As `str(uuid.UUID(bytes=taken, version=4))`, without the object: the version is 4, the variant 10 in bits.
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[taken[8] >> 4 & 3]}{text[17:20]}-{text[20:]}"


async def validate(prompt_id: str, graph: dict[str, Any], targets: list[str] | None) -> tuple[bool, Any, list, dict]:
    """`execution.validate_prompt`, which packs replace, sometimes by something else than it is."""
    import execution

    check = execution.validate_prompt
    try:
        verdict = check(prompt_id, graph, targets)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        valid, error, outputs, node_errors = verdict
        return bool(valid), error, list(outputs or ()), node_errors or {}
    except Exception as failure:
        name = f"{getattr(check, '__module__', '?')}.{getattr(check, '__qualname__', type(check).__name__)}"
        log.exception("prompt %s: %s, which checks prompts, failed", prompt_id, name)
        raise PromptRefused(
            "validation_failed",
            f"The prompt cannot be checked: {name} failed",
            f"{type(failure).__name__}: {failure}"[:500],
            {"function": name},
        ) from failure


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


def refuse_when_full(server: PromptServer, size: int = 0) -> None:
    """Raises PromptRefused (429) when the queue has no room for a prompt of `size` bytes (`--max-queue…`)."""
    most, most_bytes = server.args.max_queue, server.args.max_queue_size * 1e6
    waiting, waiting_bytes = server.prompt_queue.get_pending() if most or most_bytes else (0, 0)
    if most and waiting >= most:
        what = f"{waiting} prompts wait already"
    elif most_bytes and waiting_bytes + size > most_bytes:
        what = f"the prompts that wait have {waiting_bytes / 1e6:.1f} MB already"
    else:
        return
    raise PromptRefused("queue_full", "The queue is full", what, status=429, headers={"Retry-After": RETRY_AFTER})


def known(job: Job | None, digest: bytes) -> dict[str, Any] | None:
    """What was answered to this body before, if its id is that of a job. PromptRefused (409) for another body."""
    try:
        return submissions.answer_of_known(job, digest)
    except submissions.PromptIdConflict as conflict:
        raise PromptRefused("prompt_id_conflict", str(conflict), status=409) from conflict


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get("/prompt", "How many prompts are queued or running.", answers={200: "ExecInfo"})
    async def get_prompt(request: web.Request) -> web.Response:
        return json_answer(server.get_queue_info())

    @table.post(
        "/prompt",
        "Check a prompt and queue it.",
        params=(Parameter("Comfy-Usage-Source", description="Kept in extra_data", location="header"),),
        body="PromptRequest",
        answers={200: "PromptAccepted", **dict.fromkeys((400, 409, 429, 503), "PromptRefused")},
    )
    async def post_prompt(request: web.Request) -> web.Response:
        data = await request.read()
        try:
            refuse_if_stopping(server)
            try:
                body = from_json(data)
            except InvalidJson as error:
                raise PromptRefused("invalid_json", "the body is not valid JSON", str(error)) from error
            refuse_when_full(server, len(data))
            await server.nodes_ready.wait_async()
            refuse_if_stopping(server)
            return await submit(body, request.headers.get("Comfy-Usage-Source"))
        except PromptRefused as refusal:
            return refusal.answer()

    async def submit(body: Any, usage_source: str | None) -> web.Response:
        digest = None
        if isinstance(body, dict) and is_canonical_uuid(body.get("prompt_id")):
            digest = submissions.digest_of(body, private_keys(body.get("extra_data"), server))
            if (before := known(await server.jobs.look_up(body["prompt_id"]), digest)) is not None:
                await server.jobs.stored()
                return json_answer(before)
        counted = server.number
        body = server.trigger_on_prompt(body)
        if not isinstance(body, (dict, list)):
            raise PromptRefused("invalid_request", f"the body must be a JSON object, not {json_type(body)}")
        number = queue_number(body, server)
        if isinstance(body, list) or "prompt" not in body:
            raise PromptRefused("no_prompt", "No prompt provided", "No prompt provided")
        prompt_id = body.get("prompt_id")
        if prompt_id is None:
            prompt_id = new_prompt_id()
        elif not is_canonical_uuid(prompt_id):
            raise PromptRefused("invalid_prompt_id", "prompt_id must be a valid UUID", repr(prompt_id)[:200])
        graph = checked_graph(body["prompt"])
        targets = checked_targets(body.get("partial_execution_targets"))
        extra = extra_data_of(body, usage_source)
        force = checked_force(body.get("force"), graph)
        if force:
            extra["force"] = force
        secrets = {key: extra.pop(key) for key in private_keys(extra, server)}
        server.node_replace_manager.apply_replacements(graph)
        valid, error, outputs, node_errors = await validate(prompt_id, graph, targets)
        if not valid:
            return json_answer({"error": error, "node_errors": node_errors}, 400)
        answer = {"prompt_id": prompt_id, "number": number, "node_errors": node_errors}
        # Another request with this id may have been faster; from here on nothing comes between.
        if digest is not None and (before := known(server.jobs.remembered(prompt_id), digest)) is not None:
            await server.jobs.stored()
            return json_answer(before)
        refuse_when_full(server)  # once more: others may have come while this one was checked
        try:
            entry = QueueEntry((number, prompt_id, graph, extra, outputs, secrets))
        except ValueError as error:
            raise PromptRefused("invalid_prompt", str(error)) from error
        counter = counted if "number" not in body else None
        entry.submission = Submission(counter, digest, None if digest is None else to_json(answer))
        entry.answered = threading.Event()
        server.prompt_queue.put(entry)
        try:
            await server.jobs.stored()
        finally:
            server.loop.call_soon(entry.answered.set)  # when the loop has written what follows
        return json_answer(answer)
