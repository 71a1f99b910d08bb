"""The pile of prompts: pending, running, and the history of what ran (spec execution.md section 14).

Every operation is O(log n) in the number of prompts, except the listings. Entries are immutable: they are shared, not
copied, and their JSON is made once. Prompts with equal numbers run in the order in which they came.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from itertools import count, islice
from typing import Any, NamedTuple

import orjson

from comfy.interrupt import interrupt_current_processing
from comfy_execution import job_order, jobs, jsonbytes
from comfy_execution.outcomes import Actor, Outcome, outcome_of
from comfy_execution.queue_observer import NoObserver, QueueObserver

MAXIMUM_HISTORY_SIZE = 10_000
_SHOWN = 5  # elements of an entry that anybody may see; the sixth holds secrets


class QueueEntry(tuple):
    """`(number, prompt_id, prompt, extra_data, outputs_to_execute, secrets)`, not to be changed once queued."""

    json: bytes

    def __new__(cls, item: Iterable[Any]) -> QueueEntry:
        entry = super().__new__(cls, item)
        if len(entry) < _SHOWN:
            raise ValueError(f"a queue entry has at least {_SHOWN} elements, got {len(entry)}")
        if not math.isfinite(entry[0]):
            raise ValueError(f"a queue number must be finite, got {entry[0]}")
        # Encoded before any node can lay hands on it: listings show the prompt as it was submitted.
        entry.json = jsonbytes.encode(list(entry[:_SHOWN]))
        return entry

    @property
    def number(self) -> float:
        return self[0]

    @property
    def prompt_id(self) -> str:
        return self[1]

    @property
    def extra_data(self) -> dict[str, Any]:
        return self[3]

    @property
    def secrets(self) -> dict[str, Any]:
        return self[5] if len(self) > _SHOWN and self[5] else {}

    def shown(self) -> list[Any]:
        """The five elements that listings and the history show."""
        return list(self[:_SHOWN])


class HistoryEntry(dict):
    """`{"prompt", "outputs", "status", "meta"}`; its JSON is made once, when first asked for."""

    _json: bytes | None = None
    _prompt_json: bytes | None = None

    @property
    def json(self) -> bytes:
        """UTF-8 JSON of the entry."""
        if self._json is None:
            parts = dict(self)
            if self._prompt_json is not None:
                parts["prompt"] = orjson.Fragment(self._prompt_json)
            self._json = jsonbytes.encode(parts)
        return self._json


class _Waiting:
    """A pending entry in the heap. Deleted ones stay there, marked, until they surface."""

    __slots__ = ("arrival", "deleted", "entry")

    def __init__(self, entry: QueueEntry, arrival: int) -> None:
        self.entry = entry
        self.arrival = arrival
        self.deleted = False

    def __lt__(self, other: _Waiting) -> bool:
        return (self.entry[0], self.arrival) < (other.entry[0], other.arrival)


class ExecutionStatus(NamedTuple):
    """How a prompt ended: "success" or "error", whether all was done, and its [event, data] messages."""

    status_str: str
    completed: bool
    messages: list


class PromptQueue:
    """The queue of one server. Safe for any number of threads.

    `server.queue_updated()` is called, with the lock held, whenever the count of prompts may have changed;
    `observer` is told what changed, so that it can be stored.
    """

    ExecutionStatus = ExecutionStatus

    def __init__(self, server: Any) -> None:
        self.server = server
        self.mutex = threading.RLock()
        self.not_empty = threading.Condition(self.mutex)
        self.currently_running: dict[int, QueueEntry] = {}
        self.history: dict[str, HistoryEntry] = {}
        self.flags: dict[str, Any] = {}
        self.observer: QueueObserver = NoObserver()
        self._heap: list[_Waiting] = []
        self._pending: dict[int, _Waiting] = {}  # by arrival
        self._by_id: dict[str, list[int]] = {}  # prompt id -> arrivals; an id may be queued twice
        self._arrivals = count()
        self._task_ids = count()
        self._places: dict[int, int] = {}  # task id -> arrival of what runs, for those who put it back
        self._listing: bytes | None = None  # the answer to GET /queue, until the queue changes
        self._changes = 0
        # The jobs view: pending ones by arrival, running ones by task id, ended ones by prompt id.
        self._waiting_jobs = job_order.JobOrder()
        self._running_jobs = job_order.JobOrder()
        self._ended_jobs = job_order.JobOrder()
        server.prompt_queue = self

    # --- waiting -------------------------------------------------------------------------------------

    @property
    def queue(self) -> list[QueueEntry]:
        """The pending entries in the order in which they will run."""
        with self.mutex:
            return [waiting.entry for waiting in sorted(self._pending.values())]

    def put(self, item: Iterable[Any]) -> QueueEntry:
        """Add `(number, prompt_id, prompt, extra_data, outputs_to_execute[, secrets])`.

        Raises:
            ValueError: the number is not finite.
        """
        entry = item if isinstance(item, QueueEntry) else QueueEntry(item)
        with self.mutex:
            self._note_change()
            waiting = _Waiting(entry, next(self._arrivals))
            self._pending[waiting.arrival] = waiting
            self._by_id.setdefault(entry.prompt_id, []).append(waiting.arrival)
            self._waiting_jobs.add(waiting.arrival, jobs.created_at(entry), jobs.PENDING, entry)
            heapq.heappush(self._heap, waiting)
            self.observer.queued(entry, waiting.arrival)
            self.server.queue_updated()
            self.not_empty.notify()
        return entry

    def get(self, timeout: float | None = None, worker: str = "local") -> tuple[QueueEntry, int] | None:
        """Take the next entry; it runs from now on. Waits for one.

        The interrupt flag is cleared in the same step: whoever sees the prompt running can interrupt it.

        Args:
            timeout: seconds; None: for ever.
            worker: the name of the one who takes it.

        Returns:
            The entry and the number to give to `task_done`; None after `timeout` seconds, or when a flag is set.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.not_empty:
            while not self._pending:
                if self.flags:
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.not_empty.wait(left)
            waiting = heapq.heappop(self._heap)
            while waiting.deleted:
                waiting = heapq.heappop(self._heap)
            self._forget(waiting)
            task_id = next(self._task_ids)
            self.currently_running[task_id] = waiting.entry
            self._places[task_id] = waiting.arrival
            self.observer.started(waiting.entry, worker)
            self._running_jobs.add(task_id, jobs.created_at(waiting.entry), jobs.IN_PROGRESS, waiting.entry)
            interrupt_current_processing(False)
            self.server.queue_updated()
            return waiting.entry, task_id

    def delete_queue_items(self, prompt_ids: Iterable[str], by: Actor | None = None) -> set[str]:
        """Drop pending prompts by id, on behalf of `by`. Returns the ids that were pending."""
        dropped = []
        with self.mutex:
            for prompt_id in prompt_ids:
                for arrival in self._by_id.get(prompt_id, [])[:]:
                    dropped.append(self._pending[arrival].entry)
                    self._drop(self._pending[arrival])
            if dropped:
                self._compact()
                self.observer.dropped(dropped, by)
                self.server.queue_updated()
        return {entry.prompt_id for entry in dropped}

    def delete_queue_item(self, function: Callable[[QueueEntry], bool], by: Actor | None = None) -> bool:
        """Drop the first pending entry that `function` is true for. Returns whether there was one."""
        with self.mutex:
            for waiting in sorted(self._pending.values()):
                if function(waiting.entry):
                    self._drop(waiting)
                    self._compact()
                    self.observer.dropped([waiting.entry], by)
                    self.server.queue_updated()
                    return True
        return False

    def wipe_queue(self, by: Actor | None = None) -> None:
        """Drop everything that is pending, on behalf of `by`."""
        with self.mutex:
            self._note_change()
            dropped = self.queue
            self._heap.clear()
            self._pending.clear()
            self._by_id.clear()
            self._waiting_jobs.clear()
            if dropped:
                self.observer.dropped(dropped, by)
            self.server.queue_updated()

    def _forget(self, waiting: _Waiting) -> None:
        self._note_change()
        del self._pending[waiting.arrival]
        self._waiting_jobs.discard(waiting.arrival)
        arrivals = self._by_id[waiting.entry.prompt_id]
        arrivals.remove(waiting.arrival)
        if not arrivals:
            del self._by_id[waiting.entry.prompt_id]

    def _drop(self, waiting: _Waiting) -> None:
        waiting.deleted = True
        self._forget(waiting)

    def _note_change(self) -> None:
        self._changes += 1
        self._listing = None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._pending) + 16:
            self._heap = list(self._pending.values())
            heapq.heapify(self._heap)

    # --- running and done ------------------------------------------------------------------------------

    def finish(
        self,
        task_id: int,
        history_result: dict[str, Any],
        status: ExecutionStatus | None,
        outcome: Outcome | None = None,
    ) -> None:
        """A prompt has ended: in one step it stops running and is in the history. Tells no client.

        outcome: how it ended, if more is known than the status says.
        """
        with self.mutex:
            self._note_change()
            entry = self.currently_running.pop(task_id)
            self._places.pop(task_id, None)
            self._running_jobs.discard(task_id)
            record = HistoryEntry(prompt=entry.shown(), outputs={}, status=None)
            record._prompt_json = entry.json
            if status is not None:
                record["status"] = ExecutionStatus(*status)._asdict()
            record.update(history_result)
            self.history.pop(entry.prompt_id, None)
            while len(self.history) >= MAXIMUM_HISTORY_SIZE:
                self.delete_history_item(next(iter(self.history)))
            self.history[entry.prompt_id] = record
            self._add_ended(entry.prompt_id, record)
            self.observer.ended(entry, record, outcome or outcome_of(record))

    def task_done(
        self,
        item_id: int,
        history_result: dict[str, Any],
        status: ExecutionStatus | None,
        process_item: Callable[[Any], Any] | None = None,
    ) -> None:
        """`finish`, then announce the new count."""
        with self.mutex:
            self.finish(item_id, history_result, status)
            self.server.queue_updated()

    # --- looking ---------------------------------------------------------------------------------------

    def get_current_queue(self) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """The running and the pending entries, the latter in the order in which they will run."""
        with self.mutex:
            return list(self.currently_running.values()), self.queue

    def get_current_queue_volatile(self) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """As `get_current_queue`; entries are shared, so both are cheap."""
        return self.get_current_queue()

    def get_tasks_remaining(self) -> int:
        """How many prompts are pending or running."""
        with self.mutex:
            return len(self._pending) + len(self.currently_running)

    def running_ids(self) -> list[str]:
        """Ids of the prompts that run."""
        with self.mutex:
            return [entry.prompt_id for entry in self.currently_running.values()]

    def knows(self, prompt_id: str) -> bool:
        """Whether a prompt of this id is pending or running."""
        with self.mutex:
            return prompt_id in self._by_id or prompt_id in self.running_ids()

    def queue_json(self) -> bytes:
        """The answer to GET /queue, made once for all who ask while the queue stays as it is."""
        with self.mutex:
            if self._listing is not None:
                return self._listing
            changes = self._changes
            running, pending = self.get_current_queue()
        listing = b'{"queue_running":[%b],"queue_pending":[%b]}' % (
            b",".join(entry.json for entry in running),
            b",".join(entry.json for entry in pending),
        )
        with self.mutex:
            if self._changes == changes:
                self._listing = listing
        return listing

    # --- history ----------------------------------------------------------------------------------------

    def get_history(
        self,
        prompt_id: str | None = None,
        max_items: int | None = None,
        offset: int = -1,
        map_function: Callable[[Any], Any] | None = None,
    ) -> dict[str, Any]:
        """History entries by prompt id, oldest first.

        Args:
            prompt_id: only this one (an empty dict when it is unknown).
            max_items: only that many: the newest, or those from `offset` on.
            offset: how many of the oldest to skip; negative: not given.
            map_function: applied to each entry.
        """
        with self.mutex:
            if prompt_id is not None:
                found = {prompt_id: self.history[prompt_id]} if prompt_id in self.history else {}
            else:
                start, stop = self._window(max_items, offset)
                found = dict(islice(self.history.items(), start, stop))
        if map_function is not None:
            found = {key: map_function(entry) for key, entry in found.items()}
        return found

    def history_json(self, prompt_id: str | None = None, max_items: int | None = None, offset: int = -1) -> bytes:
        """The answer to GET /history and GET /history/{id}."""
        found = self.get_history(prompt_id, max_items, offset)
        return b"{%b}" % b",".join(jsonbytes.encode(key) + b":" + entry.json for key, entry in found.items())

    def _window(self, max_items: int | None, offset: int) -> tuple[int, int]:
        size = len(self.history)
        if offset < 0:
            start = 0 if max_items is None else max(0, size - max(0, max_items))
        else:
            start = min(offset, size)
        stop = size if max_items is None else min(size, start + max(0, max_items))
        return start, stop

    def wipe_history(self) -> None:
        """Forget all that ran."""
        with self.mutex:
            self.history = {}
            self._ended_jobs.clear()

    def delete_history_item(self, id_to_delete: str) -> None:
        """Forget one prompt."""
        with self.mutex:
            self.history.pop(id_to_delete, None)
            self._ended_jobs.discard(id_to_delete)

    # --- jobs -------------------------------------------------------------------------------------------

    def jobs_by_creation(
        self, states: Collection[str], descending: bool, offset: int, limit: int | None
    ) -> tuple[list[tuple[str, Any]], int]:
        """(state, queue entry or history entry) of a page of jobs, and how many there are in these states."""
        with self.mutex:
            if len(self._ended_jobs) != len(self.history):  # a pack has changed the history by hand
                self._ended_jobs.clear()
                for prompt_id, record in self.history.items():
                    self._add_ended(prompt_id, record)
            orders = (self._waiting_jobs, self._running_jobs, self._ended_jobs)
            return job_order.page(orders, states, descending, offset, limit)

    def _add_ended(self, prompt_id: str, record: HistoryEntry) -> None:
        self._ended_jobs.add(prompt_id, jobs.created_at(record["prompt"]), jobs.state_of(record), record)

    # --- flags for the worker -----------------------------------------------------------------------------

    def set_flag(self, name: str, data: Any) -> None:
        """Leave the worker a note (`unload_models`, `free_memory`); it is read after the prompt that runs."""
        with self.mutex:
            self.flags[name] = data
            self.not_empty.notify()

    def get_flags(self, reset: bool = True) -> dict[str, Any]:
        """The notes, which are then forgotten unless `reset` is false."""
        with self.mutex:
            if not reset:
                return dict(self.flags)
            flags, self.flags = self.flags, {}
            return flags
