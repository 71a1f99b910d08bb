"""Cancelling jobs, with a true answer for each, and running them again."""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution.attempts import ALREADY_FINISHED, CANCELLED, STOPPING, UNKNOWN
from comfy_execution.prompt_queue import QueueEntry
from comfy_execution.queue_control import NotPending
from gateway.openapi import BOOLEAN, JSON, Body, Parameter
from jobs.ledger import Submission
from protocol import InvalidJson, from_json
from routes.answers import Refused, actor_of, flag_query, json_answer, json_type, log_request, read_object, stored
from routes.prompt import queue_and_store, refuse_if_stopping, refuse_when_full, validate
from routes.prompt_body import PromptRefused, checked_graph, is_canonical_uuid, private_keys, queue_place

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer

_FULL = Parameter("full", BOOLEAN, "Say what became of each id, beside the reference's answer")


async def cancel(server: PromptServer, request: web.Request, ids: list[str]) -> dict[str, str]:
    """Cancel jobs. Returns for each id `cancelled`, `stopping`, `already_finished` or `unknown`."""
    answers = server.prompt_queue.cancel(ids, actor_of(request))
    await stored(server)
    for ident, answer in answers.items():
        if answer == UNKNOWN and server.jobs is not None:
            job = await asyncio.to_thread(server.jobs.find, ident)
            if job is not None:
                answers[ident] = ALREADY_FINISHED
    return answers


def changed_graph(graph: dict[str, Any], changes: Any) -> dict[str, Any]:
    """A graph with other inputs: node id -> input name -> value. Refused (400) for a node that is not there."""
    if not isinstance(changes, dict):
        raise Refused(f"inputs must be an object of node ids, not {json_type(changes)}")
    graph = copy.deepcopy(graph)
    for node_id, inputs in changes.items():
        if node_id not in graph:
            raise Refused(f"inputs names node {node_id!r}, which the prompt does not have"[:200])
        if not isinstance(inputs, dict):
            raise Refused(f"inputs of node {node_id!r} must be an object, not {json_type(inputs)}"[:200])
        graph[node_id].setdefault("inputs", {}).update(inputs)
    return graph


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.post(
        "/jobs/{id}/cancel",
        "Interrupt a running job, or drop a waiting one.",
        params=(_FULL,),
        answers={200: "Cancelled"},
        plain=False,
    )
    async def cancel_one(request: web.Request) -> web.Response:
        ident = request.match_info["id"]
        state = (await cancel(server, request, [ident]))[ident]
        shown = {"id": ident, "state": state} if flag_query(request, "full") else {}
        answer = json_answer({"cancelled": state in (CANCELLED, STOPPING), **shown})
        answer.headers["X-Job-State"] = state
        return answer

    @table.post(
        "/jobs/cancel",
        "Cancel several jobs.",
        params=(_FULL,),
        body="JobIds",
        answers={200: "Cancelled", 400: "InvalidIds"},
        plain=False,
    )
    async def cancel_many(request: web.Request) -> web.Response:
        ids = (await read_object(request)).get("job_ids")
        if not isinstance(ids, list):
            raise Refused("job_ids must be an array")
        invalid = [str(i) for i in ids if not is_canonical_uuid(i)]
        if invalid:
            raise Refused("job_ids must be UUIDs", invalid_ids=invalid)
        states = await cancel(server, request, ids)
        shown = {"jobs": states} if flag_query(request, "full") else {}
        return json_answer({"cancelled": not {CANCELLED, STOPPING}.isdisjoint(states.values()), **shown})

    @table.post(
        "/jobs/{id}/retry",
        "Run a job again that has failed or was cancelled; with changed inputs, as a new job linked to the old one.",
        body=Body({JSON: "RetryRequest"}, required=False),
        answers={
            200: "Retried",
            400: "PromptRefused",
            404: "Refused",
            409: "Refused",
            **dict.fromkeys((429, 503), "PromptRefused"),
        },
        plain=False,
    )
    async def retry(request: web.Request) -> web.Response:
        try:
            refuse_if_stopping(server)
            refuse_when_full(server)
            await server.nodes_ready.wait_async()
            return await run_again(request)
        except PromptRefused as refusal:
            return refusal.answer()

    async def run_again(request: web.Request) -> web.Response:
        data = await request.read()
        try:
            body = from_json(data) if data.strip() else {}
        except InvalidJson as error:
            raise Refused(f"the body is not valid JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(f"the body must be a JSON object or empty, not {json_type(body)}")
        ident = request.match_info["id"]
        job = await asyncio.to_thread(server.jobs.find, ident)
        if job is None:
            raise Refused("Job not found", 404)
        if not job.is_over:
            raise Refused(f"the job is {job.state}; only a job that has ended can run again", 409, state=job.state)
        entry = await asyncio.to_thread(server.jobs.entry, ident)
        if entry is None:
            raise Refused("what this job ran is no longer kept", 409)
        number, counter = queue_place(body, server)
        # Secrets are never stored: whoever runs a job again that needs some sends them again.
        given = body.get("extra_data")
        if given is not None and not isinstance(given, dict):
            raise Refused(f"extra_data must be an object, not {json_type(given)}")
        entry = entry.with_secrets({key: given[key] for key in private_keys(given, server)})
        if body.get("inputs") not in (None, {}):
            return await run_changed(request, entry, (number, counter), body["inputs"])
        if job.state == "completed":
            raise Refused("the job has completed; send changed inputs to run it in another way", 409, state=job.state)
        await validated(ident, entry[2], entry[4])
        if (now := server.jobs.remembered(ident)) is not None and now.state == "completed":
            raise Refused("the job has completed meanwhile", 409, state=now.state)
        again = entry.with_number(number)
        again.submission = Submission(counter)
        try:
            server.prompt_queue.run_again(again)
        except NotPending as error:  # somebody else was faster
            raise Refused(str(error), 409) from error
        await server.jobs.stored()
        log_request(request, f"runs {ident} again")
        return json_answer({"prompt_id": ident, "number": number})

    async def run_changed(
        request: web.Request, entry: QueueEntry, place: tuple[float, int | None], changes: Any
    ) -> web.Response:
        number, counter = place
        graph = checked_graph(changed_graph(entry[2], changes))
        new_id = str(uuid.uuid4())
        outputs, node_errors = await validated(new_id, graph, entry[4])
        extra = {**entry.extra_data, "create_time": int(time.time() * 1000), "retry_of": entry.prompt_id}
        new = QueueEntry((number, new_id, graph, extra, outputs, entry.secrets))
        new.submission = Submission(counter)
        await queue_and_store(server, new)
        log_request(request, f"runs {entry.prompt_id} again with changed inputs as {new_id}")
        answer = {"prompt_id": new_id, "number": number, "retry_of": entry.prompt_id, "node_errors": node_errors}
        return json_answer(answer)

    async def validated(ident: str, graph: dict[str, Any], targets: list[str]) -> tuple[list[str], dict[str, Any]]:
        """The outputs to run, and what is wrong with others. Refused (400) if nothing can run."""
        valid, error, outputs, node_errors = await validate(ident, graph, targets)
        if not valid:
            told = {"type": "invalid_prompt", "message": "the prompt cannot run"} | (error or {})
            fields = {key: told[key] for key in ("type", "message", "details", "extra_info") if key in told}
            raise PromptRefused(**fields, node_errors=node_errors)
        return outputs, node_errors
