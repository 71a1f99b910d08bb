"""Jobs as JSON: the reference's fields (comfy_execution.jobs), and beside them what the ledger knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from comfy_execution import jobs, jsonbytes
from jobs.job import Job
from jobs.store import Row


def ledger_fields(job: Job) -> dict[str, Any]:
    """`attempts`, and why a job is not completed: `reason`, `detail`, `by`."""
    fields: dict[str, Any] = {"attempts": [attempt.shown() for attempt in job.attempts]}
    for name in ("reason", "detail", "by"):
        value = getattr(job, name)
        if value is not None:
            fields[name] = value
    return fields


def ended_card(job: Job, record: Mapping[str, Any]) -> tuple[bytes, int]:
    """A job of the history as listings show it; and the ms between its first and last event, 0 if they are missing."""
    shown = jobs.finished_job(record)
    start, end = shown.get("execution_start_time"), shown.get("execution_end_time")
    duration = end - start if isinstance(start, int) and isinstance(end, int) else 0
    return jsonbytes.encode(shown | {"status": job.state} | ledger_fields(job)), duration


def listed(row: Row, full: bool) -> Any:
    """A row of a listing, to be encoded. full: with attempts, also where there is nothing to tell about them."""
    if row.card is not None:
        return orjson.Fragment(row.card)
    shown: dict[str, Any] = {
        "id": row.id,
        "status": row.state,
        "priority": row.number,
        "create_time": row.created or None,
        "outputs_count": 0,
        "previewable_outputs_count": 0,
        "workflow_id": row.workflow_id,
    }
    shown = {key: value for key, value in shown.items() if value is not None}
    over = row.state not in jobs.QUEUED  # cancelled before it ran
    if full or over or _is_telling(row.state, row.attempts):
        shown["attempts"] = orjson.Fragment(row.attempts)
    if over:
        actor = None if row.actor is None else orjson.Fragment(row.actor)
        told = {"reason": row.reason, "detail": row.detail, "by": actor}
        shown |= {key: value for key, value in told.items() if value is not None}
    return shown


def queued(job: Job, entry: Any, full: bool) -> dict[str, Any]:
    """A job that waits or runs; `full` as for `listed`."""
    shown = jobs.queued_job(entry, job.state)
    fields = ledger_fields(job)
    if full or len(fields["attempts"]) > (job.state == jobs.IN_PROGRESS):
        shown |= fields
    return shown


def detailed(job: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    """A job of the history in full."""
    return jobs.finished_job(record, detailed=True) | {"status": job.state} | ledger_fields(job)


def _is_telling(state: str, attempts: str) -> bool:
    """Whether there is more than the one attempt that every running job has."""
    return attempts != "[]" and (state != jobs.IN_PROGRESS or len(jsonbytes.decode(attempts)) > 1)
