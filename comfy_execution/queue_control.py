"""What the queue can do beyond the reference's: pause, move, cancel with an answer, put back, close.

Each operation is one step under the queue's lock: nobody sees half of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from comfy.interrupt import interrupt_current_processing
from comfy_execution.attempts import ALREADY_FINISHED, CANCELLED, STOPPING, UNKNOWN, Attempt, StopOrder
from comfy_execution.line import AFTER, BEFORE, Waiting
from comfy_execution.outcomes import INTERRUPTED, Actor

if TYPE_CHECKING:
    import threading

    from comfy_execution.line import Line
    from comfy_execution.prompt_queue import QueueEntry
    from comfy_execution.queue_observer import QueueObserver

log = logging.getLogger(__name__)


class NotPending(ValueError):
    """Prompts cannot be moved because some of them do not wait. `states`: id -> what is known of it."""

    def __init__(self, states: dict[str, str]) -> None:
        super().__init__("only pending prompts can be moved; " + ", ".join(f"{i} is {s}" for i, s in states.items()))
        self.states = states


class QueueControl:
    """The part of `PromptQueue` that unmodified clients never use."""

    server: Any
    mutex: threading.RLock
    not_empty: threading.Condition
    observer: QueueObserver
    paused: bool
    was_paused: bool
    closed: bool
    currently_running: dict[int, QueueEntry]
    history: Any
    _history: Any
    _line: Line
    _attempts: dict[int, Attempt]

    # --- pausing -------------------------------------------------------------------------------------------

    def pause(self, lasting: bool = True) -> None:
        """Hand out no more prompts; what runs goes on.

        lasting: also when another process goes on with this queue, until somebody lets it `resume`.
        """
        self._set_paused(True, lasting)

    def resume(self) -> None:
        """Hand out prompts again."""
        self._set_paused(False, True)

    def _set_paused(self, paused: bool, lasting: bool) -> None:
        with self.mutex:
            self.paused = paused
            if lasting:
                self.observer.paused(paused)
            self.was_paused = self.was_paused or paused
            self.not_empty.notify_all()
            self.server.queue_updated()

    def close(self) -> None:
        """Hand out no more prompts for good: the server stops."""
        with self.mutex:
            self.closed = True
            self.not_empty.notify_all()

    # --- order ---------------------------------------------------------------------------------------------

    def set_number(self, prompt_ids: Sequence[str], number: float) -> list[QueueEntry]:
        """Give pending prompts a number, in this order behind those that have it. All of them or, if any does not
        wait, none.

        Raises:
            NotPending: some do not wait.
        """
        with self.mutex:
            return self._note_moves(self._line.set_number(self._all_waiting(prompt_ids), number), len(prompt_ids))

    def move(self, prompt_ids: Sequence[str], where: str, anchor_id: str | None = None) -> list[QueueEntry]:
        """Put pending prompts together, in this order, somewhere else in the line. All of them, or none.

        Args:
            where: `front`, `back`, or `before` or `after` the prompt `anchor_id`.

        Raises:
            NotPending: some do not wait, or the anchor does not.
            ValueError: the anchor is among those to be moved.
        """
        with self.mutex:
            waiting = self._all_waiting(prompt_ids)
            anchor = None
            if where in (BEFORE, AFTER):
                (anchor,) = self._all_waiting([anchor_id])
            return self._note_moves(self._line.move(waiting, where, anchor), len(waiting))

    def _all_waiting(self, prompt_ids: Iterable[str]) -> list[Waiting]:
        found = {prompt_id: self._line.of(prompt_id) for prompt_id in dict.fromkeys(prompt_ids)}
        missing = [prompt_id for prompt_id, waiting in found.items() if not waiting]
        if missing:
            running = set(self.running_ids())
            raise NotPending({i: "running" if i in running else self._past(i) for i in missing})
        return [waiting[0] for waiting in found.values()]

    def _note_moves(self, moved: list[Waiting], asked_for: int) -> list[QueueEntry]:
        self._note_change()
        self.observer.moved([(waiting.entry, waiting.place) for waiting in moved])
        return [waiting.entry for waiting in moved[:asked_for]]

    # --- stopping ------------------------------------------------------------------------------------------

    def cancel(self, prompt_ids: Iterable[str], by: Actor | None = None) -> dict[str, str]:
        """Drop those that wait, and tell those that run to stop.

        Returns:
            For each id `cancelled`, `stopping`, `already_finished` or `unknown`. `stopping` is a promise: whatever its
            node still does, the prompt ends as interrupted.
        """
        answers = {}
        with self.mutex:
            for prompt_id in dict.fromkeys(prompt_ids):
                waiting = self._line.of(prompt_id)
                self._drop(waiting, by)
                if self.interrupt(by, prompt_id):
                    answers[prompt_id] = STOPPING
                else:
                    answers[prompt_id] = CANCELLED if waiting else self._past(prompt_id)
        return answers

    def interrupt(self, by: Actor | None = None, prompt_id: str | None = None) -> list[str]:
        """Tell what runs, or only that prompt, to stop on behalf of a client. Returns the ids that will."""
        stopped = self.stop(StopOrder(INTERRUPTED, by), prompt_id)
        if stopped:
            who = f"{by.address} by {by.route}" if by is not None else "somebody"
            log.info("%s interrupts %s", who, ", ".join(stopped))
        return stopped

    def stop(self, order: StopOrder, prompt_id: str | None = None) -> list[str]:
        """Give an order to what runs, or only to that prompt. Returns the ids of those that it reached in time."""
        with self.mutex:  # or the prompt could end, and the next one get the interrupt
            stopped = [
                attempt
                for attempt in self._attempts.values()
                if prompt_id in (None, attempt.prompt_id) and attempt.order(order)
            ]
            if stopped:
                interrupt_current_processing()
            for attempt in stopped:
                if attempt.stop is order and order.reason == INTERRUPTED:
                    self.observer.stopping(attempt.entry, order.by)
        return [attempt.prompt_id for attempt in stopped]

    def put_back(self, task_id: int, reason: str, detail: str | None = None, behind: int = 0) -> bool:
        """A running prompt is pending again, for another attempt. What its thread still does counts for nothing.

        Args:
            reason: why this attempt ended, one of `comfy_execution.outcomes`.
            behind: how many of those that wait go before it; 0: it goes back to its place.

        Returns:
            False if it ran no longer.
        """
        with self.mutex:
            attempt = self._end_attempt(task_id)
            if attempt is None:
                return False
            attempt.over = True
            last = self._line.nth(behind - 1) if behind > 0 else None
            waiting = self._wait(attempt.entry, attempt.place, (*attempt.causes, reason))
            if last is not None and last < waiting:
                last = None  # it is behind it by itself
            if last is not None:
                (waiting, *others) = self._line.move([waiting], AFTER, last)
                self.observer.moved([(other.entry, other.place) for other in others])
            self.observer.put_back(waiting.entry, waiting.place, reason, detail)
            self.server.queue_updated()
            return True

    def run_again(self, entry: QueueEntry) -> QueueEntry:
        """Queue a prompt that has ended once more, under its id: its history entry goes.

        Raises:
            NotPending: it waits or runs.
        """
        with self.mutex:
            if entry[1] in self._line or entry[1] in self.running_ids():
                raise NotPending({entry[1]: "running" if entry[1] in self.running_ids() else "pending"})
            self._history.discard([entry[1]])
            return self.put(entry)

    # --- looking ---------------------------------------------------------------------------------------------

    def attempts(self) -> list[Attempt]:
        """What runs."""
        with self.mutex:
            return list(self._attempts.values())

    def attempt_of(self, task_id: int) -> Attempt:
        """The attempt of a running prompt. Raises KeyError if there is none."""
        return self._attempts[task_id]

    def _past(self, prompt_id: str) -> str:
        ending = any(attempt.prompt_id == prompt_id and attempt.settled for attempt in self._attempts.values())
        return ALREADY_FINISHED if ending or self._history.shows(prompt_id) else UNKNOWN

    # --- telling owners --------------------------------------------------------------------------------------

    def _report_dropped(self, entries: list[QueueEntry], by: Actor | None) -> None:
        """Tell the observer, and each owner, that prompts will not run.

        `execution_interrupted` is how clients know the end of a job. The page, though, takes it as the end of what it
        is showing: a client that has another prompt running gets `job_cancelled` alone.
        """
        if not entries:
            return
        self.observer.dropped(entries, by)
        busy = {_client_of(entry) for entry in self.currently_running.values()}
        for entry in entries:
            client_id = _client_of(entry)
            if client_id is None:
                continue
            data = {"prompt_id": entry[1], "timestamp": int(time.time() * 1000)}
            self.server.send_sync("job_cancelled", data, client_id)
            if client_id not in busy:
                where = {"node_id": None, "node_type": None, "executed": []}
                self.server.send_sync("execution_interrupted", data | where, client_id)


def _client_of(entry: Any) -> str | None:
    extra_data = entry[3]
    client_id = extra_data.get("client_id") if isinstance(extra_data, dict) else None
    return client_id if isinstance(client_id, str) else None
