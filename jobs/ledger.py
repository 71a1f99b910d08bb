"""The ledger: what became of every job. It is told by the queue, and answers whoever asks.

A job is pending, then in progress, then completed, failed or cancelled, and never goes back, with two exceptions that
each make a new attempt: what ran is put back, and what has ended is queued once more under its id (a retry).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from comfy_execution import jobs
from comfy_execution.outcomes import INTERRUPTED, Actor, Outcome
from comfy_execution.prompt_queue import QueueEntry
from jobs.job import PUT_BACK, Attempt, Job

_MAXIMUM_ENDED = 10_000


class Ledger:
    """The jobs of one server; an observer of its queue (`comfy_execution.queue_observer`).

    `instance_id` is new with each start of the process, so that clients notice a restart.
    """

    def __init__(self) -> None:
        self.instance_id = str(uuid.uuid4())
        self.started_at = time.time()
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._entries: dict[str, QueueEntry] = {}

    # --- told by the queue, which holds its lock -----------------------------------------------------------

    def queued(self, entry: QueueEntry, place: float) -> None:
        """A new job, or another attempt of one that has ended."""
        with self._lock:
            job = self._job(entry)
            job.state, job.number, job.place = jobs.PENDING, entry.number, place
            job.reason = job.detail = job.by = None
            self._entries[job.id] = entry

    def started(self, entry: QueueEntry, worker: str) -> None:
        """A new attempt runs."""
        with self._lock:
            job = self._job(entry)
            job.state = jobs.IN_PROGRESS
            job.attempts.append(Attempt(len(job.attempts) + 1, worker, _now()))

    def dropped(self, entries: Sequence[QueueEntry], by: Actor | None) -> None:
        """Pending jobs are cancelled."""
        with self._lock:
            for entry in entries:
                job = self._job(entry)
                job.state, job.reason, job.by = jobs.CANCELLED, INTERRUPTED, by.shown() if by else None

    def put_back(self, entry: QueueEntry, place: float, reason: str, detail: str | None) -> None:
        """The attempt that runs is given up; the job is pending again."""
        with self._lock:
            job = self._job(entry)
            job.state, job.number, job.place = jobs.PENDING, entry.number, place
            self._end_attempt(job, PUT_BACK, reason, detail, None)

    def ended(self, entry: QueueEntry, record: Mapping[str, Any], outcome: Outcome) -> None:
        """The attempt that runs is the last one."""
        by = outcome.by.shown() if outcome.by else None
        with self._lock:
            job = self._job(entry)
            job.state, job.reason, job.detail, job.by = outcome.state, outcome.reason, outcome.detail, by
            self._end_attempt(job, outcome.state, outcome.reason, outcome.detail, by)
            while len(self._jobs) > _MAXIMUM_ENDED:
                oldest = next((ident for ident, job in self._jobs.items() if job.is_over), None)
                if oldest is None:
                    break
                del self._jobs[oldest], self._entries[oldest]

    def moved(self, entries: Sequence[tuple[QueueEntry, float]]) -> None:
        """Pending jobs have another number or place."""
        with self._lock:
            for entry, place in entries:
                job = self._job(entry)
                job.number, job.place = entry.number, place
                self._entries[job.id] = entry

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was told is stored. Any thread but the event loop's."""
        return True

    def _job(self, entry: QueueEntry) -> Job:
        job = self._jobs.get(entry.prompt_id)
        if job is None:
            job = Job(entry.prompt_id, jobs.PENDING, entry.number, 0, _created(entry), **_labels(entry))
            self._jobs[job.id] = job
            self._entries[job.id] = entry
        return job

    def _end_attempt(
        self, job: Job, result: str, reason: str | None, detail: str | None, by: dict[str, str] | None
    ) -> None:
        attempt = job.running
        if attempt is not None:
            attempt.ended, attempt.result, attempt.reason, attempt.detail, attempt.by = (
                _now(),
                result,
                reason,
                detail,
                by,
            )

    # --- asked ---------------------------------------------------------------------------------------------

    def find(self, prompt_id: str) -> Job | None:
        """The job of an id, None if there is none."""
        with self._lock:
            return self._jobs.get(prompt_id)

    def entry(self, prompt_id: str) -> QueueEntry | None:
        """What was submitted (without its secrets, after a restart); to be queued again for a retry."""
        with self._lock:
            return self._entries.get(prompt_id)

    async def stored(self) -> None:
        """As `settle`, for the event loop."""


def _now() -> int:
    return int(time.time() * 1000)


def _created(entry: QueueEntry) -> int:
    created = jobs.created_at(entry)
    return int(created) if isinstance(created, int | float) and 0 < created < 2**62 else 0


def _labels(entry: QueueEntry) -> dict[str, str | None]:
    """client_id, workflow_id and batch_id of an entry, where they are texts."""
    extra_data = entry.extra_data if isinstance(entry.extra_data, dict) else {}
    found = {
        "client_id": extra_data.get("client_id"),
        "workflow_id": jobs.workflow_id_of(extra_data),
        "batch_id": extra_data.get("batch_id"),
    }
    return {name: value if isinstance(value, str) else None for name, value in found.items()}
