"""Jobs: queued, running and finished prompts in one list (http-api.md section 5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from comfy_execution import jobs
from gateway.openapi import BOOLEAN, INTEGER, REFUSED, Parameter, bounded, one_of
from jobs import deletion, pages
from jobs.store import Query
from routes.answers import Refused, flag_query, int_query, json_answer, json_body

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


def label(request: web.Request, name: str) -> str | None:
    """A text of the query, as a store can look for it."""
    return request.query.get(name, "").encode("utf-8", "replace").decode() or None


def query_of(request: web.Request) -> Query:
    """Which jobs a request for the list wants. Refused (400) for what cannot be meant."""
    limit, offset = int_query(request, "limit"), int_query(request, "offset") or 0
    if limit is not None and limit <= 0:
        raise Refused("limit must be above 0")
    numbers = [offset, int_query(request, "created_after"), int_query(request, "created_before")]
    if any(number is not None and abs(number) >= 2**62 for number in numbers):
        raise Refused("offset, created_after and created_before must be numbers below 2**62")
    return Query(
        statuses(request) or jobs.JobStatus.ALL,
        client_id=label(request, "client_id"),
        workflow_id=label(request, "workflow_id"),
        batch_id=label(request, "batch_id"),
        created_from=numbers[1],
        created_before=numbers[2],
        by_duration=choice(request, "sort_by", jobs.SORT_KEYS) == "execution_duration",
        descending=choice(request, "sort_order", ("desc", "asc")) == "desc",
        limit=limit,
        offset=max(0, offset),
    )


def add_to(table: Table, server: PromptServer) -> None:
    """Register this resource's routes."""

    @table.get(
        "/jobs",
        "Queued, running and ended prompts in one list.",
        params=(
            Parameter("status", description=f"Comma list of {', '.join(jobs.JobStatus.ALL)}; all by default"),
            Parameter("workflow_id", description="Only jobs of this workflow"),
            Parameter("client_id", description="Only jobs of this client"),
            Parameter("batch_id", description="Only jobs whose extra_data has this batch_id"),
            Parameter("created_after", INTEGER, "Only jobs submitted at this time or later, in ms since the epoch"),
            Parameter("created_before", INTEGER, "Only jobs submitted before this time"),
            Parameter("sort_by", one_of(*jobs.SORT_KEYS)),
            Parameter("sort_order", one_of("desc", "asc")),
            Parameter(
                "limit",
                bounded(1),
                "At most that many: 10,000, also when it is more; 10,000 by default, 100 with a cursor",
            ),
            Parameter("offset", INTEGER, "Skip that many; negative: none"),
            Parameter("cursor", description="Go on behind pagination.next_cursor of the last page; empty: start"),
            Parameter("full", BOOLEAN, "With instance_id, and all that is known of jobs that wait or run"),
        ),
        answers={200: "JobList", **REFUSED},
        plain=False,
    )
    async def list_jobs(request: web.Request) -> web.Response:
        query, cursor = query_of(request), request.query.get("cursor")
        full = await asyncio.to_thread(server.live_facts) if flag_query(request, "full") else None
        try:
            if cursor is None:
                return json_body(await asyncio.to_thread(pages.by_offset, server.jobs, query, full))
            return json_body(await asyncio.to_thread(pages.by_cursor, server.jobs, query, cursor, full))
        except pages.BadCursor as error:
            raise Refused(str(error)) from error

    @table.get(
        "/jobs/{id}",
        "One job in full.",
        params=(Parameter("full", BOOLEAN, "With instance_id, attempts and outputs also while it waits or runs"),),
        answers={200: "Job", 404: "Refused"},
        plain=False,
    )
    async def get_job(request: web.Request) -> web.Response:
        ident, full = request.match_info["id"], flag_query(request, "full")
        job = await asyncio.to_thread(server.jobs.shown, ident, full)
        if job is None:
            raise Refused("Job not found", 404)
        if full and job["status"] in jobs.QUEUED:
            job |= (await asyncio.to_thread(server.live_facts)).get(ident, {})
        if full and job["status"] == jobs.IN_PROGRESS:
            job["outputs"] = jobs.normalize_outputs(server.outputs_of_run(ident))  # so far
        if full:
            job["instance_id"] = server.jobs.instance_id
        return json_answer(job)

    @table.delete(
        "/jobs/{id}",
        "Forget a job that has ended.",
        params=(Parameter("outputs", BOOLEAN, "Delete the files that it made, too"),),
        answers={200: "JobDeleted", 404: "Refused", 409: "Refused"},
        plain=False,
    )
    async def delete_job(request: web.Request) -> web.Response:
        ident, outputs = request.match_info["id"], flag_query(request, "outputs")
        try:
            deleted = await asyncio.to_thread(deletion.delete_job, server.jobs, ident, outputs)
        except deletion.JobIsQueued as error:
            raise Refused(str(error), 409) from error
        if deleted is None:
            raise Refused("Job not found", 404)
        return json_answer(deleted)
