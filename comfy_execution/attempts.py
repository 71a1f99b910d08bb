"""One attempt at a prompt, from the moment the queue hands it over: how long it runs, and whether it was told to stop.

Changed with the queue's lock held; looked at by anybody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any

from comfy_execution.outcomes import INTERRUPTED, SHUTDOWN
from comfy_execution.watch import RunWatch

if TYPE_CHECKING:
    from comfy_execution.outcomes import Actor

COROUTINE_SECONDS = 10.0  # how long coroutines may go on after a client's interrupt
# What an id is answered with when somebody wants to cancel it.
CANCELLED, STOPPING, ALREADY_FINISHED, UNKNOWN = "cancelled", "stopping", "already_finished", "unknown"


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Why an attempt is to end.

    Args:
        reason: `interrupted`, `timeout`, `shutdown` or `worker_died` of `comfy_execution.outcomes`.
        by: who asked for it, if it was a client.
        detail: a sentence for people.
    """

    reason: str
    by: Actor | None = None
    detail: str | None = None
    at: int = field(default_factory=lambda: int(time.time() * 1000))  # ms since the epoch
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Attempt:
    """One attempt.

    Args:
        entry: the queue entry.
        task_id: its key in `PromptQueue.currently_running`.
        causes: why each attempt before it was given up.
        place: its place among entries of its number, where it goes when it is put back.
        lock: the queue's.
    """

    entry: Any
    task_id: int
    lock: RLock
    causes: tuple[str, ...] = ()
    place: float = 0
    started: float = field(default_factory=time.monotonic)
    started_at: int = field(default_factory=lambda: int(time.time() * 1000))  # ms since the epoch
    watch: RunWatch = field(default_factory=RunWatch)
    stop: StopOrder | None = None
    settled: bool = False  # its end is decided: it is too late to stop it
    over: bool = False  # it runs no longer; what its thread may still do counts for nothing

    @property
    def number(self) -> int:
        """Which attempt of this process it is, from 1."""
        return len(self.causes) + 1

    @property
    def prompt_id(self) -> str:
        return self.entry[1]

    @property
    def result_unwanted(self) -> bool:
        """Whether what its nodes still return is to be dropped. A server that stops takes what is ready in time."""
        return self.over or (self.stop is not None and self.stop.reason != SHUTDOWN)

    @property
    def must_leave(self) -> bool:
        """Whether coroutines are not to be waited for. A client's interrupt lets them end, as clients know it, but
        not for ever."""
        if self.over or self.stop is None:
            return self.over
        return self.stop.reason != INTERRUPTED or time.monotonic() - self.stop.since > COROUTINE_SECONDS

    def order(self, order: StopOrder) -> bool:
        """Tell it to stop. A client's order takes the place of the server's own. False if it is too late."""
        with self.lock:
            if self.settled:
                return False
            if self.stop is None or (order.reason == INTERRUPTED and self.stop.reason != INTERRUPTED):
                self.stop = order
            return True

    def settle(self) -> StopOrder | None:
        """Its nodes have ended: from now on it is too late to stop it. Returns the order it was given in time."""
        with self.lock:
            self.settled = True
            return self.stop

    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started
