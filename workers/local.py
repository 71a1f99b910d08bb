"""The worker of this process: one daemon thread that runs prompts until the process ends.

Nothing a node does may end it. Should the thread die all the same, another takes its place (see `_main`).
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import comfy.cli_args
from comfy_execution import faults
from comfy_execution.attempts import Attempt
from comfy_execution.caching import CacheType
from comfy_execution.jobs import CANCELLED, COMPLETED, FAILED
from comfy_execution.outcomes import (
    INTERRUPTED,
    LONGEST_DETAIL,
    NODE_ERROR,
    SHUTDOWN,
    WORKER_DIED,
    Outcome,
    classify,
)
from comfy_execution.progress import install_progress_hook
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue, QueueEntry

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0  # how long a run waits, at most, until its submitter has been answered
_COLLECT_SECONDS = 10.0  # least time between two full garbage collections
_IDLE_COLLECT_SECONDS = 60.0  # the same while nothing runs; other threads leave rubbish too
_RESTART_SECONDS = 0.5  # before a dead worker is replaced, so that one that cannot live does not spin
_SETTLE_SECONDS = 1.0  # how long the end of an attempt that was given up waits for the store
EXIT_DEVICE_LOST = 76  # the device needs a new process: start me again
_NEVER = 1_000_000  # a threshold of the collector that is not reached while a prompt runs


class PromptWorker:
    """Runs the prompts of a queue.

    Args:
        server: its `nodes_ready` is waited for; told the end of each prompt.
        queue: where prompts come from and go to.
        make_executor: makes the executor, once nodes are there (default: by the command line).
        retry_behind: whether an attempt that failed is worth another: behind how many of those that wait it is to go;
            None: it has ended (the default for all).
        succeeded: told the entry and the seconds of each attempt that succeeded.
        on_device_lost: called once when a device can only be used again by a new process. The worker takes no more
            prompts then; what waits is left to the store.
        idle_unload: seconds without a prompt after which models are taken off their devices; 0: never.
    """

    def __init__(
        self,
        server: Any,
        queue: PromptQueue,
        make_executor: Callable[[Any], Any] | None = None,
        retry_behind: Callable[[Attempt, Outcome], int | None] = lambda attempt, outcome: None,
        succeeded: Callable[[QueueEntry, float], None] = lambda entry, seconds: None,
        on_device_lost: Callable[[], None] = lambda: None,
        idle_unload: float = 0,
    ) -> None:
        self.server = server
        self.queue = queue
        self._on_device_lost = on_device_lost
        self._idle_unload = idle_unload
        self._last_prompt = time.monotonic()
        self._make_executor = make_executor or executor_by_arguments
        self._retry_behind = retry_behind
        self._succeeded = succeeded
        self.on_end: list[Callable[[str, dict[str, Any]], object]] = []  # called with prompt id and outputs; quickly
        self.deaths = 0  # how often its thread had to be replaced
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._task: tuple[QueueEntry, int] | None = None  # what runs, until it is in the history
        self._last_collection = 0.0
        self._has_run = False  # since the last collection

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._main, name="prompt-worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the prompt that runs. Returns at once."""
        self._stopping.set()
        self.queue.set_flag("stop", True)

    def is_alive(self) -> bool:
        """Whether there is a thread that takes prompts."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout)

    def revive(self) -> None:
        """If the thread is gone although it should not be: give up what it ran, and start another."""
        if self._thread is not None and not self._thread.is_alive() and not self._stopping.is_set():
            self._replace()

    def _main(self) -> None:
        try:
            self._work()
            return
        except BaseException:  # although everything a node can do is caught closer to the node
            log.critical("the prompt worker died and is replaced", exc_info=True)
        if not self._stopping.is_set():
            time.sleep(_RESTART_SECONDS)
            self._replace()

    def _replace(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread() and self.is_alive():
                return  # somebody else was faster
            self.deaths += 1
            try:
                self._abandon_task()
            finally:
                self.start()

    def _work(self) -> None:
        self.server.nodes_ready.wait()
        executor = self.server.executor = self._make_executor(self.server)
        self._quiet_collector()
        while not self._stopping.is_set():
            task = self.queue.get(timeout=self._patience())
            if task is not None:
                self._task = task
                self._has_run = True
                self._run(executor, *task)
                self._last_prompt = time.monotonic()
                if executor.device_lost:
                    return self._leave_to_a_new_process()
            try:
                self._act_on_flags(executor)
                self._unload_when_idle()
                self._collect()
            except BaseException:
                log.exception("the prompt worker could not tidy up")

    def _leave_to_a_new_process(self) -> None:
        log.critical("a device can only be used again by a new process: the worker takes no more prompts")
        self._stopping.set()
        self._on_device_lost()

    def _run(self, executor: Any, entry: QueueEntry, task_id: int) -> None:
        started = time.perf_counter()
        attempt = executor.attempt = self.queue.attempt_of(task_id)
        announced = False

        def before_end(executor: Any) -> bool:
            nonlocal announced
            announced = self._end(executor, attempt)
            return announced

        try:
            if entry.answered is not None:
                entry.answered.wait(_ANSWER_SECONDS)
            self.queue.observer.settle()  # should the process die, it is known what ran
            extra_data = {**entry.extra_data, **entry.secrets}
            executor.execute(entry[2], entry.prompt_id, extra_data, entry[4], before_end=before_end)
        except BaseException as error:
            log.exception("prompt %s ended in a way that nobody expected", entry.prompt_id)
            announced = self._abandon_task(error)
        finally:
            executor.attempt = None
        log.info("Prompt executed in %.2f seconds (%s)", time.perf_counter() - started, entry.prompt_id)
        if announced:
            self._announce_end(entry.prompt_id)
            for callback in self.on_end:
                try:
                    callback(entry.prompt_id, executor.history_result.get("outputs", {}))
                except Exception:
                    log.exception("prompt %s has ended, which could not be passed on", entry.prompt_id)

    def _end(self, executor: Any, attempt: Attempt) -> bool:
        """The nodes have ended: write the history, or put the prompt back. Returns whether clients are to know."""
        event, data = executor.status_messages[-1]
        outcome = outcome_by(event, data, executor.failure_reason, attempt)
        status = ExecutionStatus(
            "success" if executor.success else "error",
            executor.success,
            [list(message) for message in executor.status_messages],
        )
        ended = self._finish_or_retry(attempt, executor.history_result, status, outcome)
        self._task = None
        self.queue.observer.settle()  # what the last event announces survives the process
        return ended

    def _finish_or_retry(
        self, attempt: Attempt, result: dict[str, Any], status: ExecutionStatus, outcome: Outcome
    ) -> bool:
        """Returns whether the prompt has ended here and now."""
        stopped = attempt.stop is not None and attempt.stop.reason == SHUTDOWN
        if stopped and outcome.reason == INTERRUPTED:
            self._put_back(attempt, SHUTDOWN, "the server stopped while it ran", 0)
            return False
        if outcome.state == COMPLETED:
            self._succeeded(attempt.entry, attempt.seconds())
        behind = self._retry_behind(attempt, outcome)
        if behind is not None:
            self._put_back(attempt, outcome.reason, outcome.detail, behind)
            return False
        return self.queue.finish(attempt.task_id, result, status, outcome)

    def _put_back(self, attempt: Attempt, reason: str, detail: str | None, behind: int) -> None:
        if self.queue.put_back(attempt.task_id, reason, detail, behind):
            log.warning("prompt %s is put back after attempt %d: %s", attempt.prompt_id, attempt.number, reason)
            self.server.last_node_id = None  # or clients that connect now would be shown its node
            tell_put_back(self.server, attempt, reason, detail)

    def _announce_end(self, prompt_id: str) -> None:
        with self.queue.mutex:
            self.server.queue_updated()
        client_id = self.server.client_id
        if client_id is not None:
            self.server.send_sync("executing", {"node": None, "prompt_id": prompt_id}, client_id)

    def _abandon_task(self, error: BaseException | None = None) -> bool:
        """What ran has not reached the history: put it there as failed, or put it back.

        error: what the executor raised; None if the thread itself has died.

        Returns:
            Whether the prompt has ended.
        """
        if self._task is None:
            return False
        task_id = self._task[1]
        self._task = None
        if task_id not in self.queue.currently_running:
            return False
        attempt = self.queue.attempt_of(task_id)
        attempt.settle()
        data = _failure(attempt, "The worker ended while it ran this prompt", "WorkerDied")
        if error is not None:
            data["exception_type"] = faults.type_name(error)
        return self._end_from_outside(attempt, "execution_error", data, WORKER_DIED if error is None else None, error)

    def give_up(self, attempt: Attempt) -> bool:
        """End an attempt that was told to stop and does not: its node has the thread, which cannot be taken from it.

        What the node still does counts for nothing. Returns whether the prompt has ended (or else is put back).
        """
        with self.queue.mutex:
            if attempt.stop is None or attempt.settled or attempt.task_id not in self.queue.currently_running:
                return False
            order = attempt.settle()
        if order.reason == INTERRUPTED:
            where = {"prompt_id": attempt.prompt_id, "node_id": None, "node_type": None, "executed": []}
            return self._end_from_outside(attempt, "execution_interrupted", _stamped(where), INTERRUPTED)
        if order.reason == SHUTDOWN:
            self._put_back(attempt, SHUTDOWN, "the server stopped while it ran", 0)
            self.queue.observer.settle(_SETTLE_SECONDS)
            return False
        data = _failure(attempt, order.detail or order.reason, "JobTimeout")
        return self._end_from_outside(attempt, "execution_error", data, order.reason)

    def _end_from_outside(
        self,
        attempt: Attempt,
        event: str,
        data: dict[str, Any],
        reason: str | None,
        error: BaseException | None = None,
    ) -> bool:
        """End an attempt whose executor can no longer do it. Returns whether the prompt has ended."""
        reason = reason or (classify(error) if error is not None else NODE_ERROR)
        status = ExecutionStatus("error", False, [[event, data]])
        outcome = outcome_by(event, data, reason, attempt)
        ended = self._finish_or_retry(attempt, {"outputs": {}, "meta": {}}, status, outcome)
        attempt.over = True
        self.queue.observer.settle(_SETTLE_SECONDS)
        client_id = attempt.entry.extra_data.get("client_id")
        if ended and (client_id is not None or event == "execution_interrupted"):
            self.server.send_sync(event, data, client_id)
        return ended

    # --- between prompts ---------------------------------------------------------------------------------

    def _act_on_flags(self, executor: Any) -> None:
        flags = self.queue.get_flags()
        free_memory = flags.get("free_memory", False)
        if flags.get("unload_models", free_memory):
            management = sys.modules.get("comfy.model_management")
            if management is not None:
                management.unload_all_models("POST /free")
        if free_memory:
            executor.reset()
        if free_memory or flags.get("unload_models"):
            self._has_run, self._last_collection = True, 0.0

    def _patience(self) -> float:
        """Seconds to wait for a prompt before looking after other things."""
        if not self._idle_unload:
            return _COLLECT_SECONDS
        left = self._last_prompt + self._idle_unload - time.monotonic()
        return min(_COLLECT_SECONDS, left) if left > 0 else _COLLECT_SECONDS

    def _unload_when_idle(self) -> None:
        management = sys.modules.get("comfy.model_management")
        if not self._idle_unload or management is None or not management.current_loaded_models:
            return
        if time.monotonic() - self._last_prompt >= self._idle_unload:
            management.unload_all_models(f"{self._idle_unload:g} seconds without a prompt")
            self._has_run, self._last_collection = True, 0.0

    def _quiet_collector(self) -> None:
        """Keep full collections out of prompts: they stop all threads while they walk every object there is."""
        gc.collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)

    def _collect(self) -> None:
        now = time.monotonic()
        wait = _COLLECT_SECONDS if self._has_run else _IDLE_COLLECT_SECONDS
        if now - self._last_collection < wait:
            return
        self._last_collection = now
        self._has_run = False
        gc.collect()
        management = sys.modules.get("comfy.model_management")
        if management is not None:
            management.soft_empty_cache()


def _stamped(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "timestamp": int(time.time() * 1000)}


def _failure(attempt: Attempt, message: str, kind: str) -> dict[str, Any]:
    """The data of an execution_error that is no node's."""
    node = attempt.watch.node()
    return _stamped(
        {
            "prompt_id": attempt.prompt_id,
            "node_id": node[0] if node else None,
            "node_type": node[1] if node else None,
            "executed": [],
            "exception_message": f"{message}\n",
            "exception_type": kind,
            "traceback": [],
            "current_inputs": {},
            "current_outputs": [],
        }
    )


def outcome_by(event: str, data: dict[str, Any], reason: str | None, attempt: Attempt) -> Outcome:
    """What the last event of a run says about its job, with the reason that the executor knows."""
    if event == "execution_success":
        return Outcome(COMPLETED)
    if event == "execution_interrupted":
        order = attempt.stop
        told = order is not None and order.reason == INTERRUPTED
        return Outcome(CANCELLED, INTERRUPTED, None if told else "a node interrupted it", order.by if told else None)
    return Outcome(FAILED, reason or NODE_ERROR, str(data.get("exception_message", "")).strip()[:LONGEST_DETAIL])


def tell_put_back(server: Any, attempt: Attempt, reason: str, detail: str | None) -> None:
    """Tell the owner that its prompt waits again, with an event that clients of the reference do not know."""
    client_id = attempt.entry.extra_data.get("client_id")
    if client_id is not None:
        data = {"prompt_id": attempt.prompt_id, "attempt": attempt.number, "reason": reason, "detail": detail}
        server.send_sync("job_put_back", _stamped(data), client_id)


def executor_by_arguments(server: Any) -> Any:
    """The executor that the command line asks for, connected with the nodes' progress bars."""
    import execution

    install_progress_hook(server)
    args = comfy.cli_args.args
    options: dict[str, Any] = {"lru": args.cache_lru}
    thresholds = list(args.cache_ram or [])
    options["ram"] = thresholds[0] if thresholds else None
    options["ram_inactive"] = thresholds[1] if len(thresholds) > 1 else None
    if args.cache_none:
        cache_type = CacheType.NONE
    elif args.cache_lru > 0:
        cache_type = CacheType.LRU
    elif args.cache_classic:
        cache_type = CacheType.CLASSIC
    else:
        cache_type = CacheType.RAM_PRESSURE
    return execution.PromptExecutor(server, cache_type, options)
