"""After a start: what waited goes back into the queue, what ran gets another attempt, or is given up."""

from __future__ import annotations

import gc
import logging
import time
from typing import Any

from comfy_execution import jobs
from comfy_execution.outcomes import INTERRUPTED, SHUTDOWN, VALIDATION_ERROR, WORKER_DIED, Actor, Outcome
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue, QueueEntry
from jobs.job import DIED, PUT_BACK, Job
from jobs.ledger import Ledger
from jobs.retry import RetryRule, rule_of
from jobs.store import StoreUnavailable

log = logging.getLogger(__name__)

RESUME, PAUSE, CLEAR = "resume", "pause", "clear"
CHOICES = (RESUME, PAUSE, CLEAR)
_STOPPED = "the server ended while this job was told to stop"
DEATHS_ALLOWED = 1  # a job that takes the process with it once more than that is not run again


def recover(ledger: Ledger, queue: PromptQueue, on_restart: str = RESUME) -> int:
    """Fill an empty queue from the ledger's store. Returns how many jobs wait now.

    A store that cannot be read is given up for one in memory.

    on_restart: `resume`; `pause`: nothing runs until somebody says so; `clear`: all that waits is cancelled. A queue
        that somebody has paused stays paused, whatever this is.
    """
    started = time.perf_counter()
    collects = gc.isenabled()
    gc.disable()  # it would go through all prompts again and again while they are read
    try:
        paused = ledger.was_paused()
        waiting, fatal = _read(ledger)
    except StoreUnavailable as error:
        ledger.give_up(str(error))
        return 0
    finally:
        gc.freeze()  # nor afterwards: they go when nobody refers to them
        if collects:
            gc.enable()
    for job, entry, reason, detail in fatal:
        queue.park(entry, *_parked(job, reason, detail))
    if paused:
        log.warning("the queue is paused, as it was before: POST /api/queue/resume starts prompts again")
        queue.pause()
    queue.restore((entry, job.place, _causes(job)) for job, entry in waiting)
    if waiting and on_restart == CLEAR:
        queue.wipe_queue(by=Actor(None, "--on-restart clear"))
    elif waiting and on_restart == PAUSE:
        queue.pause(lasting=False)
    if waiting or fatal:
        what = {RESUME: "wait again", PAUSE: "wait, and the queue is paused", CLEAR: "were cancelled"}[on_restart]
        log.info("%d jobs of the last run %s (%.2f s)", len(waiting), what, time.perf_counter() - started)
    return 0 if on_restart == CLEAR else len(waiting)


def _read(ledger: Ledger) -> tuple[list[tuple[Job, QueueEntry]], list[tuple[Job, QueueEntry, str, str]]]:
    """What is to wait again, and what is not to run again, with reason and detail."""
    waiting: list[tuple[Job, QueueEntry]] = []
    fatal: list[tuple[Job, QueueEntry, str, str]] = []
    for job, encoded in ledger.store.waiting():
        lost = job.state == jobs.IN_PROGRESS
        cancelled = lost and job.running is not None and job.running.reason == INTERRUPTED
        if lost:
            _end_lost_attempt(job)
        try:
            entry = _sound(QueueEntry.restored(encoded), job.id)
        except ValueError as error:
            entry = ledger.emptied(job)
            ledger.restored(job, entry)
            fatal.append((job, entry, VALIDATION_ERROR, f"the stored prompt cannot be read: {error}"))
            continue
        if cancelled:  # it was told to stop, and did not live to do it
            ledger.restored(job, entry)
            fatal.append((job, entry, INTERRUPTED, _STOPPED))
            continue
        # What somebody retried by hand, deaths or not, and has not run since, is run.
        end = _why_not_again(job, entry) if lost else None
        ledger.restored(job, entry, lost and end is None)
        if end is not None:
            fatal.append((job, entry, WORKER_DIED, end))
        else:
            waiting.append((job, entry))
    return waiting, fatal


def _why_not_again(job: Job, entry: QueueEntry) -> str | None:
    """Why a job is not to run again that ran when the process ended: in a sentence; None if it is."""
    if deaths(job) > DEATHS_ALLOWED:
        return f"the server died while this job ran, {deaths(job)} times"
    if entry.extra_data.get("retry") is None:
        return None  # the server's own rule is for workers that die in it; a crash need not be the job's fault
    try:
        rule = rule_of(entry.extra_data["retry"], RetryRule())
    except ValueError:  # put into the queue by other means than POST /prompt
        return None
    tried = sum(cause != SHUTDOWN for cause in _causes(job))
    if WORKER_DIED in rule.causes and tried < rule.max_attempts:
        return None
    return "the server died while this job ran, and the job asks for no further attempt"


def _sound(entry: QueueEntry, prompt_id: str) -> QueueEntry:
    """The entry, if it is what was stored under an id. ValueError if the file is damaged."""
    if entry.prompt_id != prompt_id:
        raise ValueError(f"it is that of {entry.prompt_id:.100}")
    if not isinstance(entry[2], dict) or not isinstance(entry.extra_data, dict) or not isinstance(entry[4], list):
        raise ValueError("it is not a graph, extra data and a list of outputs")
    return entry


def deaths(job: Job) -> int:
    """How often the process ended while the job ran."""
    return sum(attempt.result == DIED for attempt in job.attempts)


def _causes(job: Job) -> tuple[str, ...]:
    """Why each attempt since the job last ended was given up, as the policy of retries counts them."""
    causes: list[str] = []
    for attempt in job.attempts:
        if attempt.result in (PUT_BACK, DIED):
            causes.append(attempt.reason or WORKER_DIED)
        else:
            causes.clear()  # it had ended, and somebody retried it
    return tuple(causes)


def _end_lost_attempt(job: Job) -> None:
    attempt = job.running
    if attempt is not None and attempt.reason == INTERRUPTED:
        attempt.result, attempt.detail = jobs.CANCELLED, _STOPPED
    elif attempt is not None:
        attempt.result, attempt.reason, attempt.detail = DIED, WORKER_DIED, "the server ended while this attempt ran"


def _parked(job: Job, reason: str, detail: str) -> tuple[dict[str, Any], ExecutionStatus, Outcome]:
    """The end of a job that is not run again: history result, status and outcome."""
    where = {"prompt_id": job.id, "node_id": None, "node_type": None, "executed": []}
    now = {"timestamp": int(time.time() * 1000)}
    result = {"outputs": {}, "meta": {}}
    if reason == INTERRUPTED:
        log.info("prompt %s is not run again: it was cancelled while it ran", job.id)
        by = job.attempts[-1].by
        outcome = Outcome(jobs.CANCELLED, reason, detail, None if by is None else Actor.read(by))
        return result, ExecutionStatus("error", False, [["execution_interrupted", where | now]]), outcome
    log.error("prompt %s is not run again: %s", job.id, detail)
    error = {
        "exception_message": detail + "\n",
        "exception_type": "WorkerDied" if reason == WORKER_DIED else "ValueError",
        "traceback": [],
        "current_inputs": {},
        "current_outputs": [],
    }
    status = ExecutionStatus("error", False, [["execution_error", where | error | now]])
    return result, status, Outcome(jobs.FAILED, reason, detail)
