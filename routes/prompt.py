"""Prompts: `POST /prompt` checks and queues one, `GET /prompt` tells how many there are (http-api.md section 2)."""

from __future__ import annotations

import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution.prompt_queue import QueueEntry
from gateway.openapi import Parameter
from jobs import submissions
from jobs.ledger import Submission
from protocol import InvalidJson, from_json, to_json
from routes.answers import json_answer, json_type
from routes.prompt_body import (
    PromptRefused,
    checked_force,
    checked_graph,
    checked_targets,
    extra_data_of,
    is_canonical_uuid,
    new_prompt_id,
    private_keys,
    queue_place,
)

if TYPE_CHECKING:
    from jobs.job import Job
    from routes import Table
    from server import PromptServer


log = logging.getLogger(__name__)

RETRY_AFTER = "10"  # seconds


def refuse_if_stopping(server: PromptServer) -> None:
    """PromptRefused (503) once the server has been told to stop."""
    if server.retry_after is not None:
        headers = {"Retry-After": str(server.retry_after)}
        raise PromptRefused("server_stopping", "the server is stopping", status=503, headers=headers)


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


async def queue_and_store(server: PromptServer, entry: QueueEntry) -> None:
    """Queue a new prompt and wait until it is on disk. It runs once its client has been answered."""
    entry.answered = threading.Event()
    server.prompt_queue.put(entry)
    try:
        await server.jobs.stored()
    finally:
        server.loop.call_soon(entry.answered.set)  # when the loop has written what follows


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
            await server.nodes_ready.wait_async()
            refuse_if_stopping(server)
            return await submit(body, len(data), request.headers.get("Comfy-Usage-Source"))
        except PromptRefused as refusal:
            return refusal.answer()

    async def submit(body: Any, size: int, usage_source: str | None) -> web.Response:
        digest = None
        if isinstance(body, dict) and is_canonical_uuid(body.get("prompt_id")):
            digest = submissions.digest_of(body, private_keys(body.get("extra_data"), server))
            if (before := known(await server.jobs.look_up(body["prompt_id"]), digest)) is not None:
                await server.jobs.stored()
                return json_answer(before)
        refuse_when_full(server, size)
        body = server.trigger_on_prompt(body)
        if not isinstance(body, (dict, list)):
            raise PromptRefused("invalid_request", f"the body must be a JSON object, not {json_type(body)}")
        number, counter = queue_place(body, server)
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
        entry.submission = Submission(counter, digest, None if digest is None else to_json(answer))
        await queue_and_store(server, entry)
        return json_answer(answer)
