"""When the disk is lost altogether: what is known of jobs without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from comfy_execution import jsonbytes
from comfy_execution.history import HistoryEntry
from jobs import cards
from jobs.job import Job
from jobs.store import Change


def salvage(
    live: Iterable[tuple[Job, bytes]], recent: Mapping[str, Job], records: Iterable[tuple[str, HistoryEntry]]
) -> list[Change]:
    """What writes this to an empty store.

    Args:
        live: what waits or runs, and its queue entry as JSON.
        recent: jobs that have ended lately, by id.
        records: the newest entries of the history by id, oldest first.
    """
    changes = []
    for prompt_id, record in records:
        job = recent.get(prompt_id)
        if job is not None and record.prompt_json is not None:
            card, _ = cards.ended_card(job, record)
            result = jsonbytes.encode({key: value for key, value in record.items() if key != "prompt"})
            changes.append(Change("insert", (replace(job, card=card), record.prompt_json)))
            changes.append(Change("keep", (prompt_id, result)))
    return [*changes, *(Change("insert", (job, entry)) for job, entry in live)]
