"""What is known of jobs that wait or run beside what the ledger keeps: when they will start, that they are stopping."""

from __future__ import annotations

from typing import Any

from comfy_execution.attempts import Attempt
from comfy_execution.prompt_queue import PromptQueue
from jobs.estimates import RunTimes


def waiting(queue: PromptQueue, run_times: RunTimes) -> dict[str, dict[str, Any]]:
    """The pending jobs in their order, as `RunTimes.of_queue`; no times of start while the queue is paused."""
    with queue.mutex:
        paused, running, pending = queue.paused, queue.attempts(), queue.queue
    guesses = run_times.of_queue(running, pending)
    return {i: {**guess, "estimated_start_time": None} for i, guess in guesses.items()} if paused else guesses


def facts(queue: PromptQueue, run_times: RunTimes) -> dict[str, dict[str, Any]]:
    """By id: `waiting` for those that wait; `stopping` for those that run and were told to stop."""
    running = {attempt.prompt_id: stopping_of(attempt) for attempt in queue.attempts()}
    return {**waiting(queue, run_times), **{ident: fact for ident, fact in running.items() if fact}}


def stopping_of(attempt: Attempt) -> dict[str, Any]:
    """`{"stopping": {"reason", "since" (ms since the epoch), "by"?, "detail"?}}`; empty if it was not told to stop."""
    order = attempt.stop
    if order is None:
        return {}
    shown = {
        "reason": order.reason,
        "since": order.at,
        "by": order.by.shown() if order.by is not None else None,
        "detail": order.detail,
    }
    return {"stopping": {key: value for key, value in shown.items() if value is not None}}
