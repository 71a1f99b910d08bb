"""Jobs: queued, running and finished prompts in one list (http-api.md section 5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from comfy_execution import jobs
from gateway.openapi import INTEGER, REFUSED, Parameter, bounded, one_of
from protocol import to_json
from routes.answers import Refused, int_query, json_answer, json_body, read_object
from routes.prompt import is_canonical_uuid
from routes.queue import interrupt_running

if TYPE_CHECKING:
    from routes import Table
    from server import PromptServer


def choice(request: web.Request, name: str, choices: tuple[str, ...]) -> str:
    """A query parameter that must be one of `choices`, the first by default. Refused (400) otherwise."""
    value = request.query.get(name, choices[0]).lower()
    if value not in choices:
        raise Refused(f"{name} must be one of {', '.join(choices)}")
    return value


def statuses(request: web.Request) -> list[str] | None:
    """The states of the query's comma list, None without one. Refused (400) for an unknown state."""
    text = request.query.get("status", "")
    if not text.strip():
        return None
    wanted = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [w for w in wanted if w not in jobs.JobStatus.ALL]
    if unknown:
        raise Refused(f"unknown status {', '.join(unknown)}; known are {', '.join(jobs.JobStatus.ALL)}")
    return wanted


def cancel(server: PromptServer, asked_by: str | None, prompt_id: str) -> bool:
    """Interrupt a running prompt, drop a pending one; False for any other id."""
    dropped = server.prompt_queue.delete_queue_items([prompt_id])
    return bool(dropped) or interrupt_running(server, asked_by, prompt_id)


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    def answer(offset: int, limit: int | None, arguments: dict[str, Any]) -> bytes:
        queue = server.prompt_queue
        if arguments["workflow_id"] is None and arguments["sort_by"] == "created_at":
            states = arguments["statuses"] or jobs.JobStatus.ALL
            page, total = queue.jobs_by_creation(states, arguments["descending"], offset, limit)
            found = jobs.shown(page)
        else:
            waiting = queue.get_current_queue()
            found, total = jobs.list_jobs(*waiting, queue.get_history(), limit=limit, offset=offset, **arguments)
        pagination = {
            "offset": offset,
            "limit": limit,
            "total": total,
            "has_more": offset + len(found) < total and bool(found),
        }
        return to_json({"jobs": found, "pagination": pagination})

    @table.get(
        "/jobs",
        "Queued, running and finished prompts in one list.",
        params=(
            Parameter("status", description=f"Comma list of {', '.join(jobs.JobStatus.ALL)}; all by default"),
            Parameter("workflow_id", description="Only jobs of this workflow"),
            Parameter("sort_by", one_of(*jobs.SORT_KEYS)),
            Parameter("sort_order", one_of("desc", "asc")),
            Parameter("limit", bounded(1), "At most that many; all by default"),
            Parameter("offset", INTEGER, "Skip that many; negative: none"),
        ),
        answers={200: "JobList", **REFUSED},
        plain=False,
    )
    async def list_jobs(request: web.Request) -> web.Response:
        limit, offset = int_query(request, "limit"), int_query(request, "offset") or 0
        if limit is not None and limit <= 0:
            raise Refused("limit must be above 0")
        arguments = {
            "statuses": statuses(request),
            "workflow_id": request.query.get("workflow_id") or None,
            "sort_by": choice(request, "sort_by", jobs.SORT_KEYS),
            "descending": choice(request, "sort_order", ("desc", "asc")) == "desc",
        }
        return json_body(await asyncio.to_thread(answer, max(0, offset), limit, arguments))

    @table.get(
        "/jobs/{id}",
        "One job in full.",
        answers={200: "Job", 404: "Refused"},
        plain=False,
    )
    async def get_job(request: web.Request) -> web.Response:
        ident, queue = request.match_info["id"], server.prompt_queue
        job = jobs.find_job(ident, *queue.get_current_queue(), queue.get_history(ident))
        if job is None:
            raise Refused("Job not found", 404)
        if job["status"] == jobs.IN_PROGRESS:
            job["outputs"] = jobs.normalize_outputs(server.outputs_of_run(ident))  # so far
        return json_answer(job)

    @table.post(
        "/jobs/{id}/cancel",
        "Interrupt a running job, or drop a waiting one.",
        answers={200: "Cancelled"},
        plain=False,
    )
    async def cancel_one(request: web.Request) -> web.Response:
        return json_answer({"cancelled": cancel(server, request.remote, request.match_info["id"])})

    @table.post(
        "/jobs/cancel",
        "Cancel several jobs.",
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
        cancelled = [ident for ident in ids if cancel(server, request.remote, ident)]
        return json_answer({"cancelled": bool(cancelled)})
