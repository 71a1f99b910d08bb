"""The pile of prompts: pending, running, and the history of what ran (spec execution.md section 14).

Every operation is O(log n) in the number of prompts, except the listings. Entries are immutable: they are shared, not
copied, and their JSON is made once. Prompts with equal numbers run in the order in which they came.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import count
from typing import Any, NamedTuple

from comfy.interrupt import interrupt_current_processing
from comfy_execution import jsonbytes
from comfy_execution.attempts import Attempt
from comfy_execution.history import History, HistoryEntry
from comfy_execution.line import Line, Waiting
from comfy_execution.outcomes import Actor, Outcome, outcome_of
from comfy_execution.queue_control import QueueControl
from comfy_execution.queue_observer import NoObserver, QueueObserver

_SHOWN = 5  # elements of an entry that anybody may see; the sixth holds secrets


class QueueEntry(tuple):
    """`(number, prompt_id, prompt, extra_data, outputs_to_execute, secrets)`, not to be changed once queued."""

    json: bytes
    submission: Any = None  # what the ledger of jobs is to know about how it came in
    # Set once whoever submitted it knows its id. Clients wait for that id before they listen for its events, so a run
    # must not be over by then. None: nobody waits.
    answered: threading.Event | None = None

    def __new__(cls, item: Iterable[Any]) -> QueueEntry:
        entry = super().__new__(cls, item)
        if len(entry) < _SHOWN:
            raise ValueError(f"a queue entry has at least {_SHOWN} elements, got {len(entry)}")
        if not math.isfinite(entry[0]):
            raise ValueError(f"a queue number must be finite, got {entry[0]}")
        # Encoded before any node can lay hands on it: listings show the prompt as it was submitted.
        entry.json = jsonbytes.encode(list(entry[:_SHOWN]))
        return entry

    @classmethod
    def restored(cls, encoded: bytes) -> QueueEntry:
        """The entry that has this JSON; it has no secrets any more. Raises ValueError if it is none."""
        items = jsonbytes.decode(encoded)
        if not isinstance(items, list) or len(items) < _SHOWN:
            raise ValueError(f"a queue entry is an array of {_SHOWN}")
        if not isinstance(items[0], int | float) or not isinstance(items[1], str):
            raise ValueError("a queue entry begins with a number and an id")
        entry = super().__new__(cls, items)
        entry.json = encoded
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

    def with_number(self, number: float) -> QueueEntry:
        """The same prompt with another number."""
        if number == self[0]:
            return self
        other = super().__new__(QueueEntry, (number, *self[1:]))
        other.__dict__.update(self.__dict__)
        other.json = b"[" + jsonbytes.encode(number) + self.json[self.json.index(b",") :]
        return other

    def with_secrets(self, secrets: dict[str, Any]) -> QueueEntry:
        """The same prompt with other secrets."""
        other = super().__new__(QueueEntry, (*self[:_SHOWN], secrets))
        other.__dict__.update(self.__dict__)
        return other

    def shown(self) -> list[Any]:
        """The five elements that listings and the history show."""
        return list(self[:_SHOWN])


class ExecutionStatus(NamedTuple):
    """How a prompt ended: "success" or "error", whether all was done, and its [event, data] messages."""

    status_str: str
    completed: bool
    messages: list


class PromptQueue(QueueControl):
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
        self._history: Any = History()  # or what a store gives that looks like one
        self.flags: dict[str, Any] = {}
        self.observer: QueueObserver = NoObserver()
        self.paused = False
        self.was_paused = False  # at any time: from then on clients are told whether it is
        self.closed = False
        self._line = Line()
        self._attempts: dict[int, Attempt] = {}  # by task id
        self._task_ids = count()
        self._listing: bytes | None = None  # the answer to GET /queue, until the queue changes
        self._changes = 0
        server.prompt_queue = self

    # --- waiting -------------------------------------------------------------------------------------

    @property
    def queue(self) -> list[QueueEntry]:
        """The pending entries in the order in which they will run."""
        with self.mutex:
            return [waiting.entry for waiting in self._line.in_order()]

    def next_entry(self) -> QueueEntry | None:
        """The pending entry that will run first; None if there is none."""
        with self.mutex:
            waiting = self._line.first()
            return None if waiting is None else waiting.entry

    def put(self, item: Iterable[Any], place: float | None = None) -> QueueEntry:
        """Add `(number, prompt_id, prompt, extra_data, outputs_to_execute[, secrets])`.

        place: its place among those of its number, if it had one before (by default it goes behind them).

        Raises:
            ValueError: the number is not finite.
        """
        entry = item if isinstance(item, QueueEntry) else QueueEntry(item)
        with self.mutex:
            waiting = self._wait(entry, place)
            self.observer.queued(entry, waiting.place)
            self.server.queue_updated()
        return entry

    def restore(self, entries: Iterable[tuple[QueueEntry, float, tuple[str, ...]]]) -> None:
        """Let prompts wait that waited in an earlier life of the process; the observer knows them already.

        entries: (entry, its place among those of its number, why each earlier attempt was given up).
        """
        with self.mutex:
            for entry, place, causes in entries:
                self._wait(entry, place, causes)
            self.server.queue_updated()

    def get(self, timeout: float | None = None, worker: str = "local") -> tuple[QueueEntry, int] | None:
        """Take the next entry; it runs from now on. Waits for one, and while the queue is paused.

        The interrupt flag is cleared in the same step: whoever sees the prompt running can interrupt it.

        Args:
            timeout: seconds; None: for ever.
            worker: the name of the one who takes it.

        Returns:
            The entry and the number to give to `task_done`; None after `timeout` seconds, when a flag is set, or when
            the queue is closed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.not_empty:
            while self.closed or self.paused or not self._line:
                if self.flags or self.closed:
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.not_empty.wait(left)
            self._note_change()
            waiting = self._line.take()
            entry, task_id = waiting.entry, next(self._task_ids)
            self.currently_running[task_id] = entry
            self._attempts[task_id] = Attempt(entry, task_id, self.mutex, waiting.causes, waiting.place)
            self.observer.started(entry, worker)
            interrupt_current_processing(False)
            self.server.queue_updated()
            return entry, task_id

    def delete_queue_items(self, prompt_ids: Iterable[str], by: Actor | None = None) -> set[str]:
        """Drop pending prompts by id, on behalf of `by`. Returns the ids that were pending."""
        with self.mutex:
            dropped = [waiting for ident in dict.fromkeys(prompt_ids) for waiting in self._line.of(ident)]
            self._drop(dropped, by)
        return {waiting.entry.prompt_id for waiting in dropped}

    def delete_queue_item(self, function: Callable[[QueueEntry], bool], by: Actor | None = None) -> bool:
        """Drop the first pending entry that `function` is true for. Returns whether there was one."""
        with self.mutex:
            first = [waiting for waiting in self._line.in_order() if function(waiting.entry)][:1]
            self._drop(first, by)
        return bool(first)

    def wipe_queue(self, by: Actor | None = None) -> None:
        """Drop everything that is pending, on behalf of `by`."""
        with self.mutex:
            dropped = self._line.clear()
            self._note_change()
            self._report_dropped([waiting.entry for waiting in dropped], by)
            self.server.queue_updated()

    def _wait(self, entry: QueueEntry, place: float | None, causes: tuple[str, ...] = ()) -> Waiting:
        self._note_change()
        waiting = self._line.add(entry, place, causes)
        self.not_empty.notify()
        return waiting

    def _drop(self, dropped: list[Waiting], by: Actor | None) -> None:
        if not dropped:
            return
        self._note_change()
        for waiting in dropped:
            self._line.remove(waiting)
        self._report_dropped([waiting.entry for waiting in dropped], by)
        self.server.queue_updated()

    def _note_change(self) -> None:
        self._changes += 1
        self._listing = None

    # --- running and done ------------------------------------------------------------------------------

    def finish(
        self,
        task_id: int,
        history_result: dict[str, Any],
        status: ExecutionStatus | None,
        outcome: Outcome | None = None,
    ) -> bool:
        """A prompt has ended: in one step it stops running and is in the history. Tells no client.

        outcome: how it ended, if more is known than the status says.

        Returns:
            False, and nothing has changed, if it ran no longer: it was put back or given up before.
        """
        with self.mutex:
            attempt = self._end_attempt(task_id)
            if attempt is None:
                return False
            self._to_history(attempt.entry, history_result, status, outcome)
        return True

    def park(
        self, entry: QueueEntry, history_result: dict[str, Any], status: ExecutionStatus, outcome: Outcome
    ) -> None:
        """A prompt of an earlier life of the process goes to the history: it will not run again."""
        with self.mutex:
            self._to_history(entry, history_result, status, outcome)

    def _to_history(
        self,
        entry: QueueEntry,
        history_result: dict[str, Any],
        status: ExecutionStatus | None,
        outcome: Outcome | None,
    ) -> None:
        record = HistoryEntry(prompt=entry.shown(), outputs={}, status=None)
        record.prompt_json = entry.json
        if status is not None:
            record["status"] = ExecutionStatus(*status)._asdict()
        record.update(history_result)
        self._history.remember(entry.prompt_id, record)
        self.observer.ended(entry, record, outcome or outcome_of(record))

    def _end_attempt(self, task_id: int) -> Attempt | None:
        if self.currently_running.pop(task_id, None) is None:
            return None
        self._note_change()
        attempt = self._attempts.pop(task_id)
        attempt.settled = True
        return attempt

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
            return len(self._line) + len(self.currently_running)

    def get_pending(self) -> tuple[int, int]:
        """How many prompts wait, and how many bytes of JSON they have."""
        with self.mutex:
            return len(self._line), self._line.size

    def running_ids(self) -> list[str]:
        """Ids of the prompts that run."""
        with self.mutex:
            return [entry.prompt_id for entry in self.currently_running.values()]

    def knows(self, prompt_id: str) -> bool:
        """Whether a prompt of this id is pending or running."""
        with self.mutex:
            return prompt_id in self._line or prompt_id in self.running_ids()

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

    @property
    def history(self) -> MutableMapping[str, HistoryEntry]:
        """What has ended, by prompt id, oldest first. Packs read it, and may change it."""
        return self._history

    @history.setter
    def history(self, entries: Mapping[str, HistoryEntry]) -> None:
        with self.mutex:
            if entries is not self._history:
                kept = dict(entries)
                self._history.clear()
                self._history.update(kept)

    def use_history(self, history: Any) -> None:
        """Keep the history elsewhere: in a mapping that has the methods of `comfy_execution.history.History`."""
        self._history = history

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
        ids = self._history_ids(prompt_id, max_items, offset)
        found = {ident: record for ident in ids if (record := self._history.get(ident)) is not None}
        if map_function is not None:
            found = {key: map_function(entry) for key, entry in found.items()}
        return found

    def history_json(self, prompt_id: str | None = None, max_items: int | None = None, offset: int = -1) -> bytes:
        """The answer to GET /history and GET /history/{id}."""
        found = self._history.jsons(self._history_ids(prompt_id, max_items, offset))
        return b"{%b}" % b",".join(jsonbytes.encode(ident) + b":" + encoded for ident, encoded in found)

    def _history_ids(self, prompt_id: str | None, max_items: int | None, offset: int) -> list[str]:
        if prompt_id is not None:
            return [prompt_id]
        with self.mutex:
            return self._history.ids(*self._window(max_items, offset))

    def _window(self, max_items: int | None, offset: int) -> tuple[int, int]:
        size = len(self._history)
        if offset < 0:
            start = 0 if max_items is None else max(0, size - max(0, max_items))
        else:
            start = min(offset, size)
        stop = size if max_items is None else min(size, start + max(0, max_items))
        return start, stop

    def wipe_history(self) -> None:
        """Forget all that ran."""
        with self.mutex:
            self._history.clear()

    def delete_history_item(self, id_to_delete: str) -> None:
        """Forget one prompt."""
        with self.mutex:
            self._history.drop(id_to_delete)

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
