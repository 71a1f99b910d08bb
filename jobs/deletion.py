"""Deleting a job, and on request the files that it made, below output and temp, and no others.

A file counts as made by a job if its outputs name it, the node that did so really ran (and was not taken from the
cache), and the file was last written while the job ran: a name can come into use again, and a node can name a file that
it only shows. There is no tolerance in that: jobs follow each other within a millisecond. Where the clock of a file
system is off, a file stays.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import folder_paths
from comfy_execution import jobs
from jobs.job import Job
from jobs.ledger import Ledger

log = logging.getLogger(__name__)

_FOLDERS = ("output", "temp")


class JobIsQueued(Exception):
    """A job that waits or runs is cancelled, not deleted; the message says so."""


def delete_job(ledger: Ledger, prompt_id: str, outputs: bool = False) -> dict[str, Any] | None:
    """Delete a job that has ended. Reads the disk.

    outputs: delete its files, too.

    Returns:
        `{"deleted": id, "files": [deleted ones, as "output/sub/file.png"]}`; None for an unknown id.

    Raises:
        JobIsQueued: it has not ended.
    """
    job = ledger.find(prompt_id)
    if job is None:
        return None
    if job.state in jobs.QUEUED:
        raise JobIsQueued(f"the job {prompt_id} is {job.state}: cancel it first")
    record = ledger.history.get(prompt_id) if outputs else None
    if not ledger.forget([prompt_id]):
        raise JobIsQueued(f"the job {prompt_id} runs again: cancel it first")
    deleted = [name for name, path in dict(files_of(job, record or {})).items() if _remove(path)]
    ledger.settle()
    return {"deleted": prompt_id, "files": deleted}


def files_of(job: Job, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name as "output/sub/file.png", path) of each file that a job made and that is still there.

    Nothing outside of output and temp is ever named, whatever a node has written into its outputs: neither by `..`,
    nor by an absolute name, nor through a link.
    """
    cached = _cached_nodes(record)
    # Times of attempts are whole milliseconds, rounded down.
    spans = [(attempt.started, (attempt.ended or attempt.started) + 1) for attempt in job.attempts]
    for node_id, ui in jobs.normalize_outputs(record.get("outputs")).items():
        if node_id in cached or not isinstance(ui, Mapping):
            continue
        for items in ui.values():
            for item in items if isinstance(items, list) else ():
                found = _file(item)
                if found is not None and _written_within(found[1], spans):
                    yield found


def _cached_nodes(record: Mapping[str, Any]) -> set[str]:
    status = record.get("status")
    messages = status.get("messages") if isinstance(status, Mapping) else None
    return {node for name, data in messages or () if name == "execution_cached" for node in data.get("nodes") or ()}


def _file(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, Mapping) or item.get("type") not in _FOLDERS:
        return None
    name, subfolder = item.get("filename"), item.get("subfolder") or ""
    if not isinstance(name, str) or not isinstance(subfolder, str) or "\0" in name + subfolder:
        return None
    top = os.path.realpath(folder_paths.get_directory_by_type(item["type"]) or "")
    folder, name = os.path.split(os.path.join(top, subfolder, name))
    folder = os.path.realpath(folder)
    path = os.path.join(folder, name)
    inside = folder == top or folder.startswith(top + os.sep)
    if not inside or os.path.islink(path) or not os.path.isfile(path):
        return None
    return f"{item['type']}/{os.path.relpath(path, top).replace(os.sep, '/')}", path


def _written_within(path: str, spans: list[tuple[int, int]]) -> bool:
    """Whether a file was last written within one of some spans of ms since the epoch."""
    try:
        written = os.stat(path).st_mtime_ns / 1e6
    except OSError:
        return False
    return any(start <= written <= end for start, end in spans)


def _remove(path: str) -> bool:
    try:
        os.remove(path)
    except OSError as error:
        log.warning("%s cannot be deleted: %s", path, error.strerror or error)
        return False
    return True
