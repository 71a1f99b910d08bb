"""Looks after the worker: ends jobs at their time limit, replaces a dead thread, says what the worker is doing.

A node that computes in native code and never looks at the interrupt flag cannot be stopped inside of the process. Its
job is told to stop all the same, and what it returns is dropped; until then the worker is busy. `--on-stuck exit` ends
the process instead, for a supervisor to start it again; pending jobs are kept by the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from comfy_execution.attempts import Attempt, StopOrder
from comfy_execution.outcomes import TIMEOUT
from comfy_execution.prompt_queue import PromptQueue
from workers.local import PromptWorker
from workers.repeating import Repeating

log = logging.getLogger(__name__)

EXIT_STUCK = 75  # "temporary failure" of sysexits.h: start me again
_LOOK_SECONDS = 0.25  # between two looks
SILENT_SECONDS = 60.0  # without a sign of progress, after which the worker counts as silent
STATES = ("starting", "idle", "busy", "no_progress", "stopping", "dead")


class Watchdog(Repeating):
    """Watches one worker from a thread of its own.

    Args:
        limit_of: seconds that an entry may run, None for any time.
        stuck_seconds: how long an attempt may take to stop, 0 for any time.
        on_stuck: called once for an attempt that took longer, after it was given up.
    """

    def __init__(
        self,
        worker: PromptWorker,
        queue: PromptQueue,
        limit_of: Callable[[Any], float | None] = lambda entry: None,
        stuck_seconds: float = 0,
        on_stuck: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("watchdog", _LOOK_SECONDS, self.look)
        self._worker = worker
        self._queue = queue
        self._limit_of = limit_of
        self._stuck_seconds = stuck_seconds
        self._on_stuck = on_stuck

    def look(self) -> None:
        """Do what is to be done now."""
        self._worker.revive()
        for attempt in self._queue.attempts():
            limit = self._limit_of(attempt.entry)
            if limit is not None and attempt.stop is None and attempt.seconds() > limit:
                order = StopOrder(TIMEOUT, None, f"the job ran longer than its limit of {limit:g} s")
                if self._queue.stop(order, attempt.prompt_id):
                    log.warning("prompt %s is told to stop: %s", attempt.prompt_id, order.detail)
            stop = attempt.stop
            if stop is not None and self._stuck_seconds and time.monotonic() - stop.since > self._stuck_seconds:
                log.critical("%s; the server ends to get rid of it", self.state()["message"])
                self._worker.give_up(attempt)
                self._on_stuck()

    def state(self) -> dict[str, Any]:
        """What the worker is doing: `state` (one of `STATES`), a `message` for people, how often its thread had to be
        `restarted`, and, while it runs a job, its id, attempt, node and times in seconds."""
        worker, attempts = self._worker, self._queue.attempts()
        shown: dict[str, Any] = {"restarted": worker.deaths, "paused": self._queue.paused}
        if not worker.is_alive():
            return {"state": "dead", "message": "the worker is dead", **shown}
        if not worker.server.nodes_ready.is_set():
            return {"state": "starting", "message": "the nodes are being loaded", **shown}
        if not attempts:
            return {"state": "idle", "message": "nothing to do", **shown}
        return {**_describe(attempts[0]), **shown}


def _describe(attempt: Attempt) -> dict[str, Any]:
    running, silent, node = attempt.seconds(), attempt.watch.silence(), attempt.watch.node()
    place = f"node {node[0]} ({node[1]})" if node is not None else "no node"
    shown = {
        "prompt_id": attempt.prompt_id,
        "attempt": attempt.number,
        "running_seconds": round(running, 3),
        "silent_seconds": round(silent, 3),
    }
    if node is not None:
        shown |= {"node_id": node[0], "node_type": node[1], "node_seconds": round(node[2], 3)}
    if attempt.stop is not None:
        seconds = time.monotonic() - attempt.stop.since
        shown |= {"stop_reason": attempt.stop.reason, "stopping_seconds": round(seconds, 3)}
        state, message = "stopping", f"stopping for {seconds:.0f} s, busy on {place}"
    elif silent >= SILENT_SECONDS:
        state, message = "no_progress", f"no progress for {silent:.0f} s on {place}"
    else:
        state, message = "busy", f"busy on {place} for {node[2] if node else running:.0f} s"
    return {"state": state, "message": message, **shown}
