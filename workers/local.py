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
from comfy_execution.caching import CacheType
from comfy_execution.progress import install_progress_hook
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue, QueueEntry

log = logging.getLogger(__name__)

_COLLECT_SECONDS = 10.0  # least time between two full garbage collections
_IDLE_COLLECT_SECONDS = 60.0  # the same while nothing runs; other threads leave rubbish too
_RESTART_SECONDS = 0.5  # before a dead worker is replaced, so that one that cannot live does not spin
_NEVER = 1_000_000  # a threshold of the collector that is not reached while a prompt runs


class PromptWorker:
    """Runs the prompts of a queue.

    Args:
        server: its `nodes_ready` is waited for; told the end of each prompt.
        queue: where prompts come from and go to.
        make_executor: makes the executor, once nodes are there (default: by the command line).
    """

    def __init__(self, server: Any, queue: PromptQueue, make_executor: Callable[[Any], Any] | None = None) -> None:
        self.server = server
        self.queue = queue
        self._make_executor = make_executor or executor_by_arguments
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
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

    def _main(self) -> None:
        try:
            self._work()
            return
        except BaseException:  # although everything a node can do is caught closer to the node
            log.critical("the prompt worker died and is replaced", exc_info=True)
        if not self._stopping.is_set():
            try:
                self._abandon_task()
            finally:
                time.sleep(_RESTART_SECONDS)
                self.start()

    def _work(self) -> None:
        self.server.nodes_ready.wait()
        executor = self._make_executor(self.server)
        self._quiet_collector()
        while not self._stopping.is_set():
            task = self.queue.get(timeout=_COLLECT_SECONDS)
            if task is not None:
                self._task = task
                self._has_run = True
                self._run(executor, *task)
            try:
                self._act_on_flags(executor)
                self._collect()
            except BaseException:
                log.exception("the prompt worker could not tidy up")

    def _run(self, executor: Any, entry: QueueEntry, task_id: int) -> None:
        started = time.perf_counter()

        def write_history(executor: Any) -> None:
            status = ExecutionStatus(
                "success" if executor.success else "error",
                executor.success,
                [list(message) for message in executor.status_messages],
            )
            self.queue.finish(task_id, executor.history_result, status)
            self._task = None
            self.queue.observer.settle()  # what the last event announces survives the process

        try:
            self.queue.observer.settle()  # should the process die, it is known what ran
            extra_data = {**entry.extra_data, **entry.secrets}
            executor.execute(entry[2], entry.prompt_id, extra_data, entry[4], before_end=write_history)
        except BaseException as error:
            log.exception("prompt %s ended in a way that nobody expected", entry.prompt_id)
            self._abandon_task(error)
        log.info("Prompt executed in %.2f seconds (%s)", time.perf_counter() - started, entry.prompt_id)
        self._announce_end(entry.prompt_id)

    def _announce_end(self, prompt_id: str) -> None:
        with self.queue.mutex:
            self.server.queue_updated()
        client_id = self.server.client_id
        if client_id is not None:
            self.server.send_sync("executing", {"node": None, "prompt_id": prompt_id}, client_id)

    def _abandon_task(self, error: BaseException | None = None) -> None:
        """The prompt that ran has not reached the history: put it there as failed."""
        if self._task is None:
            return
        entry, task_id = self._task
        self._task = None
        data = {
            "prompt_id": entry.prompt_id,
            "node_id": None,
            "node_type": None,
            "executed": [],
            "exception_message": "The worker ended while it ran this prompt\n",
            "exception_type": "WorkerDied" if error is None else faults.type_name(error),
            "traceback": [],
            "current_inputs": {},
            "current_outputs": [],
            "timestamp": int(time.time() * 1000),
        }
        if task_id in self.queue.currently_running:
            status = ExecutionStatus("error", False, [["execution_error", data]])
            self.queue.finish(task_id, {"outputs": {}, "meta": {}}, status)
            client_id = entry.extra_data.get("client_id")
            if client_id is not None:
                self.server.send_sync("execution_error", data, client_id)

    # --- between prompts ---------------------------------------------------------------------------------

    def _act_on_flags(self, executor: Any) -> None:
        flags = self.queue.get_flags()
        free_memory = flags.get("free_memory", False)
        if flags.get("unload_models", free_memory):
            management = sys.modules.get("comfy.model_management")
            if management is not None:
                management.unload_all_models()
        if free_memory:
            executor.reset()
        if free_memory or flags.get("unload_models"):
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
