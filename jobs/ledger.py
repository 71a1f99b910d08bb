"""The ledger: what became of every job. It is told by the queue, writes it down, and answers whoever asks.

A job is pending, then in progress, then completed, failed or cancelled, and never goes back, with two exceptions that
each make a new attempt: what ran is put back, and what has ended is queued once more (a retry).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comfy_execution import jobs
from comfy_execution.outcomes import INTERRUPTED, Actor, Outcome, outcome_of
from comfy_execution.prompt_queue import PromptQueue, QueueEntry
from jobs import cards
from jobs.fallback import FallbackStore
from jobs.history import StoredHistory, entry_of, queue_entry_of
from jobs.job import IN_QUEUE, PUT_BACK, Attempt, Job
from jobs.retention import Retention
from jobs.salvage import salvage
from jobs.sqlite_store import MEMORY, SqliteStore
from jobs.store import Change, JobStore, Query, Row, StoreUnavailable
from jobs.tallies import Tallies
from jobs.writer import Writer

log = logging.getLogger(__name__)

HISTORY_SIZE = 10_000  # entries that listings of the history have at most
_RECENT = 512  # ended jobs that are looked up without the store
_LARGEST_INTEGER = 2**63 - 1
# What the store remembers beside jobs: whether the queue is paused, and the server's count at the newest retry.
_PAUSED, _COUNTER = "paused", "counter"


@dataclass(slots=True)
class Submission:
    """How an entry came in; `QueueEntry.submission`.

    Args:
        counter: the server's count, if the number came from it.
        digest, answer: of the body, and JSON of what is answered; if the client chose the id.
    """

    counter: int | None = None
    digest: bytes | None = None
    answer: bytes | None = None


class Ledger:
    """The jobs of one server; an observer of its queue (`comfy_execution.queue_observer`).

    The jobs that it hands out, to askers and to the store, do not change any more: a change makes a new one.
    `instance_id` is new with each start of the process, so that clients notice a restart.

    Args:
        store: where jobs are kept, maybe with something to fall back to; in memory by default.
        problem: why it is not the store that was asked for.
        history_size: entries of the history that listings show.
        retention: what is deleted, and when.
    """

    def __init__(
        self,
        store: JobStore | FallbackStore | None = None,
        problem: str | None = None,
        history_size: int = HISTORY_SIZE,
        retention: Retention | None = None,
    ) -> None:
        self.instance_id = str(uuid.uuid4())
        self.started_at = time.time()
        if not isinstance(store, FallbackStore):
            store = FallbackStore(store or SqliteStore(MEMORY), problem)
        self._stores = store
        self._stores.salvage = self._salvage
        self._writer = Writer(self._stores.apply)
        self._lock = threading.RLock()
        self._live: dict[str, Job] = {}  # what waits or runs
        self._entries: dict[str, bytes] = {}  # of these, as JSON
        self._recent: OrderedDict[str, Job] = OrderedDict()  # what has ended lately
        self._forgotten = 0  # how often jobs have been deleted
        self._retention = retention or Retention()
        self.tallies = Tallies()
        self.history = StoredHistory(
            lambda: self.store, self._writer, history_size, self._adopt, self.forget, self._live.__contains__
        )

    @property
    def store(self) -> JobStore:
        """The store in use: the disk, or memory if that does not work."""
        return self._stores.current

    def attach(self, queue: PromptQueue) -> None:
        """Observe a queue, and keep its history."""
        queue.observer = self
        queue.use_history(self.history)

    # --- told by the queue, which holds its lock -----------------------------------------------------------

    def queued(self, entry: QueueEntry, place: float) -> None:
        """A new job, or another attempt of one that has ended: then the same entry is queued again."""
        with self._lock:
            job = self._live.get(entry.prompt_id) or self._recent.get(entry.prompt_id)
            if job is None or job.created != _created(entry):
                self._insert(entry, place)
                return
            job = job.copy()
            self._entries[job.id] = entry.json
            changes = [_move(job.id, entry, place), Change("unkeep", (job.id,))]
            if entry.submission is not None and entry.submission.counter is not None:
                changes.append(Change("remember", (_COUNTER, entry.submission.counter)))
            if job.state == jobs.CANCELLED and not job.attempts:
                _note_that_it_never_ran(job)
            job.state, job.number, job.place = jobs.PENDING, _number(entry), place
            job.reason = job.detail = job.by = job.ended = job.card = None
            self._note(job, *changes)

    def restored(self, job: Job, entry: QueueEntry, lost: bool = False) -> None:
        """A job that was found in the store, and that the queue is about to have again.

        lost: it ran when the process ended; it waits now.
        """
        with self._lock:
            self._live[job.id], self._entries[job.id] = job, entry.json
            if lost:
                job = job.copy()
                job.state = jobs.PENDING
                self._note(job)

    def emptied(self, job: Job) -> QueueEntry:
        """An entry in place of a stored one that cannot be read any more."""
        extra_data = {"client_id": job.client_id, "create_time": job.created}
        entry = QueueEntry((job.number, job.id, {}, extra_data, []))
        self._writer.add_all((_move(job.id, entry, job.place),))
        return entry

    def started(self, entry: QueueEntry, worker: str) -> None:
        """A new attempt runs."""
        with self._lock:
            job = self._known(entry)
            job.state = jobs.IN_PROGRESS
            job.attempts.append(Attempt(len(job.attempts) + 1, worker, _now()))
            self._note(job)

    def stopping(self, entry: QueueEntry, by: Actor | None) -> None:
        """The attempt that runs is to end as cancelled: also if the process ends before it does."""
        with self._lock:
            job = self._known(entry)
            if job.running is not None:
                job.running.reason, job.running.by = INTERRUPTED, by.shown() if by else None
                self._note(job)

    def paused(self, paused: bool) -> None:
        """The queue is paused, or goes on."""
        self._writer.add("remember", _PAUSED, int(paused))

    def dropped(self, entries: Sequence[QueueEntry], by: Actor | None) -> None:
        """Pending jobs are cancelled."""
        actor, now = by.shown() if by else None, _now()
        with self._lock:
            for entry in entries:  # there may be many thousands
                job = self._known(entry)
                job.state, job.reason, job.by, job.ended = jobs.CANCELLED, INTERRUPTED, actor, now
                if job.attempts:  # a retry; of the many that never ran, it is noted when they are retried
                    _note_that_it_never_ran(job)
                self._note_end(job)

    def put_back(self, entry: QueueEntry, place: float, reason: str, detail: str | None) -> None:
        """The attempt that runs is given up; the job is pending again."""
        with self._lock:
            job = self._known(entry)
            job.state, job.number, job.place = jobs.PENDING, _number(entry), place
            _end_attempt(job, PUT_BACK, reason, detail, None)
            self._note(job, _move(job.id, entry, place))

    def ended(self, entry: QueueEntry, record: Mapping[str, Any], outcome: Outcome) -> None:
        """The attempt that runs is the last one."""
        with self._lock:
            job = self._known(entry)
            job.state, job.reason, job.detail = outcome.state, outcome.reason, outcome.detail
            job.by = outcome.by.shown() if outcome.by else None
            _end_attempt(job, job.state, job.reason, job.detail, job.by)
            job.ended = _now()
            job.card, job.duration = cards.ended_card(job, record)
            self._note_end(job)

    def moved(self, entries: Sequence[tuple[QueueEntry, float]]) -> None:
        """Pending jobs have another number or place."""
        with self._lock:
            for entry, place in entries:
                job = self._known(entry)
                job.number, job.place = _number(entry), place
                self._live[job.id] = job
            # Together: half a move would be an order that nobody asked for.
            self._writer.add_all([_move(entry.prompt_id, entry, place) for entry, place in entries])

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was told is stored; False if that takes longer. Any thread but the event loop's."""
        return self._writer.settle(timeout)

    def _insert(self, entry: QueueEntry, place: float) -> Job:
        submission = entry.submission or Submission()
        job = Job(
            entry.prompt_id,
            jobs.PENDING,
            _number(entry),
            place,
            _created(entry),
            **_labels(entry),
            counter=submission.counter,
            digest=submission.digest,
            answer=submission.answer,
        )
        self._recent.pop(job.id, None)
        self.history.discard([job.id])  # an id that is used again
        self._live[job.id], self._entries[job.id] = job, entry.json
        self._writer.add("insert", job, entry.json)
        return job

    def _known(self, entry: QueueEntry) -> Job:
        """The job of an entry that is queued, to be changed and noted: others may look at the one there is.

        An id may be queued twice: then the other one may have ended already.
        """
        job = self._live.get(entry.prompt_id) or self._recent.get(entry.prompt_id) or self._insert(entry, 0)
        self._entries[job.id] = entry.json
        job = job.copy()
        job.card = job.ended = None
        return job

    def _note(self, job: Job, *before: Change) -> None:
        """A job has changed, which is written together with other changes that come first."""
        self._recent.pop(job.id, None)
        self._live[job.id] = job
        self._writer.add_all((*before, Change("update", (job,))))

    def _note_end(self, job: Job) -> None:
        self._note(job)
        self.tallies.add(job)
        del self._live[job.id]
        self._entries.pop(job.id, None)
        self._keep_at_hand(job)

    def _keep_at_hand(self, job: Job) -> None:
        self._recent[job.id] = job if job.card is None else replace(job, card=None)  # the store has it
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _salvage(self) -> list[Change]:
        with self._lock:
            live = [(job, self._entries[job.id]) for job in self._live.values()]
            return salvage(live, self._recent, self.history.at_hand())

    def _adopt(self, prompt_id: str, record: Mapping[str, Any]) -> None:
        """Somebody has put an entry into the history by hand."""
        prompt = record.get("prompt")
        if not isinstance(prompt, list | tuple) or len(prompt) < 5:
            prompt = [0, prompt_id, {}, {}, []]
        entry = QueueEntry([*prompt[:1], prompt_id, *prompt[2:5]])
        outcome = outcome_of(record)
        job = Job(prompt_id, outcome.state, _number(entry), 0, _created(entry), **_labels(entry), ended=_now())
        job.card, job.duration = cards.ended_card(job, {**record, "prompt": entry.shown()})
        self._writer.add("adopt", job, entry.json)

    # --- asked ---------------------------------------------------------------------------------------------

    async def stored(self) -> None:
        """As `settle`, for the event loop."""
        await self._writer.stored()

    def find(self, prompt_id: str) -> Job | None:
        """The job of an id, as it is now; None if there is none. May read the disk."""
        job = self.remembered(prompt_id)
        if job is not None:
            return job
        while True:
            self._writer.settle()
            forgotten = self._forgotten
            job = self.store.job(prompt_id)
            if job is None or not job.is_over:
                return None
            with self._lock:
                if self._forgotten == forgotten:  # or it may be one of those that were deleted meanwhile
                    if self.remembered(prompt_id) is None:
                        self._keep_at_hand(job)  # where a retry looks for it
                    return self.remembered(prompt_id)

    def remembered(self, prompt_id: str) -> Job | None:
        """As `find`, for jobs that wait, run or have ended lately; never reads the disk."""
        with self._lock:
            return self._live.get(prompt_id) or self._recent.get(prompt_id)

    async def look_up(self, prompt_id: str) -> Job | None:
        """As `find`, for the event loop, before a prompt is queued: that must not fail because of the store."""
        job = self.remembered(prompt_id)
        try:
            return job or await asyncio.to_thread(self.find, prompt_id)
        except StoreUnavailable as error:
            log.warning("it is not known whether there was a prompt %s before: %s", prompt_id, error)
            return None

    def entry(self, prompt_id: str) -> QueueEntry | None:
        """What was submitted, without its secrets; to be queued again for a retry. Reads the disk."""
        if self.find(prompt_id) is None:
            return None
        self._writer.settle()
        payload = self.store.payloads([prompt_id]).get(prompt_id)
        return None if payload is None else queue_entry_of(payload)

    def page(self, query: Query) -> list[Row]:
        """Jobs as listings show them. Reads the disk."""
        self._writer.settle()
        return self.store.page(query)

    def total(self, query: Query) -> int:
        """How many jobs there are for a query. Reads the disk."""
        self._writer.settle()
        return self.store.total(query)

    def shown(self, prompt_id: str, full: bool = False) -> dict[str, Any] | None:
        """One job as GET /api/jobs/{id} shows it, None if the id is unknown. Reads the disk."""
        job = self.find(prompt_id)
        payload = None
        if job is not None:
            self._writer.settle()
            payload = self.store.payloads([prompt_id]).get(prompt_id)
        if job is None or payload is None:
            return None
        if job.is_over and payload.result is not None:
            return cards.detailed(job, entry_of(payload))
        return cards.queued(job, queue_entry_of(payload), full or job.is_over)

    def ended_of(self, client_id: str, count: int) -> list[tuple[Row, Mapping[str, Any] | None]]:
        """A client's newest jobs that have ended, oldest of them first, and their history entries: None for those that
        were cancelled while they waited. Reads the disk."""
        ended = (jobs.COMPLETED, jobs.FAILED, jobs.CANCELLED)
        rows = self.page(Query(ended, client_id=client_id, limit=count))
        found = []
        for row in reversed(rows):
            with contextlib.suppress(StoreUnavailable):  # one that is damaged
                found.append((row, self.history.get(row.id)))
        return found

    def next_number(self) -> int:
        """Where the server's count goes on: above all numbers that came from it."""
        try:
            known = (self.store.last_counter(), self.store.recall(_COUNTER))
            last = max((number for number in known if isinstance(number, int)), default=-1)
        except StoreUnavailable as error:
            self.give_up(str(error))
            last = -1
        return last + 1

    def was_paused(self) -> bool:
        """Whether somebody has paused the queue, in this process or an earlier one. Raises StoreUnavailable."""
        return bool(self.store.recall(_PAUSED))

    def give_up(self, problem: str) -> None:
        """Do without the disk: at the start, when it turns out that it cannot be read."""
        self._stores.give_up(problem)

    def health(self) -> dict[str, Any]:
        """How the store is: `{"state": "ok" | "degraded", "store", "persistent", "problem"?, "jobs"}`."""
        problem = self._stores.problem or self.store.trouble
        shown: dict[str, Any] = {
            "state": "ok" if problem is None else "degraded",
            "store": self.store.name,
            "persistent": self.store.persistent,
            "jobs": self.store.counts(),
        }
        return shown if problem is None else {**shown, "problem": problem}

    # --- looking after -------------------------------------------------------------------------------------

    def forget(self, prompt_ids: Sequence[str] | None) -> list[str]:
        """Delete jobs that have ended, and their history. Those that wait or run again by now are left alone.

        prompt_ids: None: all that have ended.

        Returns:
            The ids of `prompt_ids` that do not wait or run.
        """
        with self._lock:  # or one could be queued again between the look at it and the note
            self._forgotten += 1
            if prompt_ids is None:
                self._recent.clear()
                self._writer.add("forget_ended")
                return []
            over = [ident for ident in prompt_ids if ident not in self._live]
            for ident in over:
                self._recent.pop(ident, None)
            self.history.discard(over)
            self._writer.add("forget", over)
            return over

    def prune(self) -> int:
        """Delete what is older, or more, than is to be kept. Returns how many jobs that were."""
        deleted = 0
        self._writer.settle()  # or what has just ended would not be counted
        most = None if self.store.persistent else self.history.limit
        try:
            for old in self._retention.steps(self.store, most):
                deleted += len(self.forget(old))
                self._writer.settle()
        except StoreUnavailable as error:
            log.warning("old jobs could not be deleted: %s", error)
        return deleted

    def look_after(self) -> None:
        """What is to be done also while nothing happens: return to the disk, delete what is old. Reads the disk."""
        self._writer.between(self._stores.look_after)
        if self._retention.is_due(bounded=not self.store.persistent):
            self.prune()

    def close(self) -> None:
        """Store what is left, and let go of the store."""
        self._writer.close()
        self._stores.close()


def _move(prompt_id: str, entry: QueueEntry, place: float) -> Change:
    return Change("move", (prompt_id, _number(entry), place, entry.json))


def _end_attempt(job: Job, result: str, reason: str | None, detail: str | None, by: dict[str, str] | None) -> None:
    attempt = job.running
    if attempt is not None:
        attempt.ended = _now()
        attempt.result, attempt.reason, attempt.detail, attempt.by = result, reason, detail, by


def _note_that_it_never_ran(job: Job) -> None:
    """A job was cancelled while it waited: that is to be known even when it runs after all."""
    at = job.ended or _now()
    job.attempts.append(Attempt(len(job.attempts) + 1, IN_QUEUE, at, at, jobs.CANCELLED, job.reason, None, job.by))


def _now() -> int:
    return int(time.time() * 1000)


def _number(entry: QueueEntry) -> float:
    """The number of an entry, as a store can hold it."""
    number = entry.number
    return float(number) if isinstance(number, int) and abs(number) > _LARGEST_INTEGER else number


def _created(entry: QueueEntry) -> int:
    created = jobs.created_at(entry)
    usable = isinstance(created, int | float) and math.isfinite(created) and abs(created) < _LARGEST_INTEGER
    return int(created) if usable else 0


def _labels(entry: QueueEntry) -> dict[str, Any]:
    """client_id, workflow_id and batch_id of an entry, where they are texts (a workflow's id may be a number)."""
    extra_data = entry.extra_data if isinstance(entry.extra_data, dict) else {}
    workflow_id = jobs.workflow_id_of(extra_data)
    is_number = isinstance(workflow_id, int) and abs(workflow_id) <= _LARGEST_INTEGER
    return {
        "client_id": _text(extra_data.get("client_id")),
        "workflow_id": workflow_id if is_number else _text(workflow_id),
        "batch_id": _text(extra_data.get("batch_id")),
    }


def _text(value: Any) -> str | None:
    """A text that can be encoded, or None."""
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "replace").decode()
