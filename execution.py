"""Running prompts: the queue, the executor of one prompt, the check before queueing.

The faces that the ecosystem knows; the engine behind them is `comfy_execution`. Torch is imported when the first
prompt runs, not before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from comfy.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
    throw_exception_if_processing_interrupted,
)
from comfy_execution import calling, external_cache, faults, outcomes
from comfy_execution.attempts import Attempt, StopOrder
from comfy_execution.caching import CacheCounts, CacheType, ObjectStore, ResultCache, make_cache
from comfy_execution.graph import DependencyCycleError, ExecutionBlocker
from comfy_execution.history import MAXIMUM_HISTORY_SIZE
from comfy_execution.pack_hooks import PackHooks, run_waits
from comfy_execution.progress import (
    ProgressRegistry,
    WebUIProgressHandler,
    add_progress_handler,
    reset_progress_state,
)
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue, QueueEntry
from comfy_execution.run import NodeFailed, Run
from comfy_execution.validation import validate_prompt

__all__ = [
    "MAXIMUM_HISTORY_SIZE",
    "SENSITIVE_EXTRA_DATA_KEYS",
    "CacheType",
    "ExecutionBlocker",
    "ExecutionStatus",
    "PromptExecutor",
    "PromptQueue",
    "QueueEntry",
    "validate_prompt",
]

log = logging.getLogger(__name__)

# Taken out of a prompt's extra_data when it is submitted; nodes get them, listings and the history do not.
SENSITIVE_EXTRA_DATA_KEYS = ("auth_token_comfy_org", "api_key_comfy_org")

_PREVIEW_METHODS = ("none", "auto", "latent2rgb", "taesd")
_CANCEL_SECONDS = 5.0  # how long coroutines that were left over may take to end


class Caches:
    """What an executor keeps from one prompt to the next."""

    def __init__(self, outputs: ResultCache) -> None:
        self.outputs = outputs
        self.objects = ObjectStore(keeps=outputs.keeps_results)


class PromptExecutor:
    """Runs prompts, one after the other, in the thread that calls `execute`.

    Args:
        server: told about everything through `send_sync`; `client_id`, `last_node_id` and `last_prompt_id` are set.
        cache_type: which results to keep.
        cache_args: `lru`, `ram`, `ram_inactive`: see `comfy_execution.caching.make_cache`.

    After a run: `success`, `history_result` (outputs and meta), `status_messages` ([event, data] pairs) and, unless it
    succeeded, `failure_reason`.
    """

    def __init__(
        self, server: Any, cache_type: CacheType = CacheType.CLASSIC, cache_args: dict[str, Any] | None = None
    ) -> None:
        self.server = server
        self.cache_type = cache_type
        self.cache_args = cache_args or {}
        self.cache_counts = CacheCounts()  # go on when the results are forgotten
        self.attempt: Attempt | None = None  # what runs for the queue; nobody can stop a run without one
        self._prompt_id = ""
        # The last event of a run: name, data, and whether everybody is told when the run has no client.
        self._ending: tuple[str, dict[str, Any], bool] = ("", {}, False)
        self.reset()

    def reset(self) -> None:
        """Forget all results and node objects."""
        self.caches = Caches(make_cache(self.cache_type, **self.cache_args))
        self.caches.outputs.counts = self.cache_counts
        self.status_messages: list[tuple[str, dict[str, Any]]] = []
        self.history_result: dict[str, Any] = {}
        self.success = True
        self.failure_reason: str | None = None  # one of `comfy_execution.outcomes`
        self.device_lost = False  # whether the last run left a device that only a new process can use again
        self._executed: list[str] = []
        self._secrets: set[str] = set()  # texts of the prompt's extra data that no report may show

    def cache_report(self) -> dict[str, Any]:
        """Which results are kept (`mode`: a member of `CacheType`, in small letters), and what became of them.

        See `ResultCache.report`. Other threads may ask.
        """
        return {"mode": self.cache_type.name.lower(), **self.caches.outputs.report()}

    # --- telling -----------------------------------------------------------------------------------------

    def record(self, event: str, data: dict[str, Any], broadcast: bool = False) -> None:
        """Send an event, with the time, and keep it for the history."""
        self._note(event, data)
        self._send_noted(event, data, broadcast)

    add_message = record

    def send(self, event: str, data: dict[str, Any]) -> None:
        """Send an event to the run's client, if it has one."""
        if self.server.client_id is not None and not self._is_over():
            self.server.send_sync(event, data, self.server.client_id)

    def node_starts(self, node_id: str, display_id: str) -> None:
        """A node is taken up."""
        if not self._is_over():
            self.server.last_node_id = display_id
        self.send("executing", {"node": node_id, "display_node": display_id, "prompt_id": self._prompt_id})

    def result_unwanted(self) -> bool:
        """Whether the run was told to stop, so that what its nodes show is dropped."""
        return self.attempt is not None and self.attempt.result_unwanted

    def must_leave(self) -> bool:
        """Whether the run is to end now, without waiting for its coroutines."""
        return self.attempt is not None and self.attempt.must_leave

    def _is_over(self) -> bool:
        return self.attempt is not None and self.attempt.over

    def _note(self, event: str, data: dict[str, Any]) -> None:
        data["timestamp"] = int(time.time() * 1000)
        self.status_messages.append((event, data))

    def _send_noted(self, event: str, data: dict[str, Any], broadcast: bool) -> None:
        if (self.server.client_id is not None or broadcast) and not self._is_over():
            self.server.send_sync(event, data, self.server.client_id)

    # --- running -------------------------------------------------------------------------------------------

    def execute(
        self,
        prompt: dict[str, Any],
        prompt_id: str,
        extra_data: dict[str, Any] | None = None,
        execute_outputs: list[str] | tuple[str, ...] = (),
        before_end: Callable[[PromptExecutor], bool | None] | None = None,
    ) -> None:
        """Run a prompt to its end, whatever its nodes do; never raises because of them.

        Args:
            execute_outputs: the output nodes to run.
            before_end: called when all is known and the last event (success, error, interrupted) has not been sent,
                so that what the event announces can be looked up by whoever receives it. False keeps the event back.
        """
        extra_data = extra_data or {}
        self._prompt_id = prompt_id
        self.server.client_id = extra_data.get("client_id")
        self.server.last_prompt_id = prompt_id
        self.server.last_node_id = None
        self.status_messages = []
        self.history_result = {"outputs": {}, "meta": {}}
        self.success = False
        self.failure_reason = None
        self.device_lost = False
        self._executed = []
        self._secrets = self._secrets_of(extra_data)
        if before_end is None:  # the queue clears the flag when it hands a prompt over
            interrupt_current_processing(False)
        try:
            self._use_preview_method(extra_data)
            self.record("execution_start", {"prompt_id": prompt_id})
            self._run(prompt, prompt_id, extra_data, list(execute_outputs))
        except BaseException as error:  # of the engine itself, or of something a node left behind
            log.exception("prompt %s failed outside of its nodes", prompt_id)
            self._ending = self._engine_failure(error, prompt_id)
            self.failure_reason = outcomes.classify(error)
            self.device_lost = self.device_lost or faults.is_device_lost(error)
        order = self.attempt.settle() if self.attempt is not None else None
        if order is not None:
            self._obey(order)
        event, data, broadcast = self._ending
        if self._secrets:
            data = faults.without_secrets(data, self._secrets)
        self.success = event == "execution_success"
        self._note(event, data)
        if before_end is None or before_end(self) is not False:
            self._send_noted(event, data, broadcast)
        if not self._is_over():
            self.server.last_node_id = None

    def _run(self, prompt: dict[str, Any], prompt_id: str, extra_data: dict[str, Any], outputs: list[str]) -> None:
        """Run the prompt on a loop of its own; `_ending` becomes the last event."""
        import torch

        from comfy.cli_args import args
        from comfy.run_settings import RunSettings

        settings = RunSettings()
        run = Run(
            prompt_id,
            dict(prompt),
            outputs,
            extra_data,
            self.caches.outputs,
            self.caches.objects,
            self,
            self._new_registry,
            strict=args.strict_cache,
            rescue=_Rescue(),
            hooks=PackHooks(self, globals(), _OWN),
        )
        _start_measuring_memory()
        self.server.run_outputs = (prompt_id, run.ui_outputs)
        external_cache.announce("on_prompt_start", prompt_id)
        loop = asyncio.new_event_loop()
        try:
            asyncio.set_event_loop(loop)
            # Strict mode counts writes to tensors, which inference mode does not.
            with torch.no_grad() if args.strict_cache else torch.inference_mode():
                loop.run_until_complete(run.execute())
            self._ending = "execution_success", {"prompt_id": prompt_id}, False
        except NodeFailed as failure:
            self._node_failure(run, failure)
        except DependencyCycleError as cycle:
            self._cycle_failure(run, cycle)
        finally:
            self._close(loop)
            self._executed = list(run.executed)
            self.history_result = {
                "outputs": {node_id: ui["output"] for node_id, ui in run.ui_outputs.items()},
                "meta": {node_id: ui["meta"] for node_id, ui in run.ui_outputs.items()},
            }
            run.release()
            run.progress.finish_run()
            external_cache.announce("on_prompt_end", prompt_id)
            self._after_run()
            if changed := settings.restore():
                log.warning("prompt %s changed and left so, which is undone: %s", prompt_id, ", ".join(changed))

    def _new_registry(self, prompt_id: str, dynprompt: Any) -> ProgressRegistry:
        registry = reset_progress_state(prompt_id, dynprompt)
        if self.attempt is not None:
            add_progress_handler(self.attempt.watch)
        add_progress_handler(WebUIProgressHandler(self.server))
        return registry

    @staticmethod
    def _use_preview_method(extra_data: dict[str, Any]) -> None:
        latent_preview = sys.modules.get("latent_preview")
        if latent_preview is None:
            return  # nothing that draws previews has been imported
        method = extra_data.get("preview_method")
        latent_preview.set_preview_method(method if method in _PREVIEW_METHODS else "default")

    @staticmethod
    def _close(loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what coroutines are left, give them a moment, close the loop."""
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_SECONDS))
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException:
            log.warning("coroutines of a prompt did not end in an orderly way", exc_info=True)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    @staticmethod
    def _after_run() -> None:
        management = sys.modules.get("comfy.model_management")
        if management is None:
            return
        from comfy.cli_args import args

        if args.disable_smart_memory:
            management.unload_all_models("the end of a prompt, without smart memory")

    # --- failing -------------------------------------------------------------------------------------------

    def handle_execution_error(
        self,
        prompt_id: str,
        prompt: dict[str, Any],
        current_outputs: list[str],
        executed: list[str],
        error: dict[str, Any],
        ex: BaseException,
    ) -> None:
        """A node failed or was interrupted: make the run's last event of it. Packs wrap this to be told.

        Args:
            prompt: the prompt as it ran.
            error: `node_id` and what else the event is to say.
            ex: what the node ended with.
        """
        node_id = error["node_id"]
        where = {
            "prompt_id": prompt_id,
            "node_id": node_id,
            "node_type": prompt[node_id]["class_type"] if node_id in prompt else None,
            "executed": executed,
        }
        if isinstance(ex, InterruptProcessingException):
            log.info("prompt %s was interrupted at node %s", prompt_id, node_id)
            self._ending = "execution_interrupted", where, True
        else:
            self._ending = "execution_error", {**where, **error, "current_outputs": current_outputs}, False

    def _obey(self, order: StopOrder) -> None:
        """The run was told to stop, and has ended in one way or another: what it was told becomes its end.

        A run that is put back because the server stops keeps what it has reached.
        """
        if order.reason == outcomes.SHUTDOWN:
            return
        event, ended, _ = self._ending
        if event == "execution_error":
            log.warning("prompt %s, told to stop, failed: %s", self._prompt_id, ended.get("exception_message"))
        last = {"node_id": self.server.last_node_id, "node_type": None, "executed": self._executed}
        last["node_type"] = self._class_of(last["node_id"])
        where = {"prompt_id": self._prompt_id} | {key: ended.get(key, value) for key, value in last.items()}
        self.failure_reason = order.reason
        if order.reason == outcomes.INTERRUPTED:
            self._ending = "execution_interrupted", where, True
            return
        error = {
            "exception_message": f"{order.detail}\n",
            "exception_type": "JobTimeout" if order.reason == outcomes.TIMEOUT else "JobStopped",
            "traceback": [],
            "current_inputs": {},
            "current_outputs": [],
        }
        self._ending = "execution_error", {**where, **error}, False

    def _secrets_of(self, extra_data: dict[str, Any]) -> set[str]:
        private = [extra_data.get(key) for key in SENSITIVE_EXTRA_DATA_KEYS]
        return faults.secrets_of([*private, self.attempt.entry.secrets if self.attempt is not None else {}])

    def _class_of(self, node_id: str | None) -> str | None:
        node = self.attempt.entry[2].get(node_id) if self.attempt is not None else None
        return node.get("class_type") if isinstance(node, dict) else None

    def _node_failure(self, run: Run, failure: NodeFailed) -> None:
        cause = failure.cause
        self.failure_reason = outcomes.classify(cause)
        self.device_lost = faults.is_device_lost(cause)
        out_of_memory = faults.is_out_of_memory(cause) and not self.device_lost
        if out_of_memory:
            cause = _out_of_memory(cause)
        error: dict[str, Any] = {"node_id": run.prompt.get_real_node_id(failure.node_id)}
        if not isinstance(cause, InterruptProcessingException):
            failed_class = run.prompt.get_node(failure.node_id)["class_type"]
            error |= faults.describe(cause, failed_class)
            error["current_inputs"] = faults.shown_inputs(failure.data)
            if self._secrets:
                error = faults.without_secrets(error, self._secrets)
            log.error(
                "prompt %s: node %s (%s) failed: %s: %s\n%s",
                run.prompt_id,
                failure.node_id,
                failed_class,
                error["exception_type"],
                error["exception_message"].rstrip(),
                "".join(error["traceback"]).rstrip(),
            )
        self.handle_execution_error(*self._facts_of(run), error, cause)
        # The frames hold tensors: without this they live until the next failure.
        cause.__traceback__ = None
        if out_of_memory:
            _release_everything(run, failure)

    def _cycle_failure(self, run: Run, cycle: DependencyCycleError) -> None:
        self.failure_reason = outcomes.classify(cycle)
        inner = [node_id for node_id in cycle.nodes if run.prompt.get_parent_node_id(node_id) is not None]
        error = {
            "node_id": run.prompt.get_display_node_id((inner or cycle.nodes)[0]),
            "exception_message": str(cycle),
            "exception_type": "graph.DependencyCycleError",
            "traceback": [],
            "current_inputs": [],
        }
        self.handle_execution_error(*self._facts_of(run), error, cycle)

    def _facts_of(self, run: Run) -> tuple[str, dict[str, Any], list[str], list[str]]:
        """Prompt id, prompt, nodes with a result or the hope of one, and nodes that have run."""
        outputs = list(run.prompt.all_node_ids()) if self.caches.outputs.keeps_results else []
        return run.prompt_id, run.prompt.get_original_prompt(), outputs, list(run.executed)

    @staticmethod
    def _engine_failure(error: BaseException, prompt_id: str) -> tuple[str, dict[str, Any], bool]:
        where = {"prompt_id": prompt_id, "node_id": None, "node_type": None, "executed": []}
        if isinstance(error, InterruptProcessingException):
            return "execution_interrupted", where, True
        described = faults.describe(error, "")
        return "execution_error", {**where, **described, "current_inputs": {}, "current_outputs": []}, False


async def _async_map_node_over_list(
    prompt_id: str,
    unique_id: str,
    obj: Any,
    input_data_all: dict[str, list],
    func: str,
    allow_interrupt: bool = False,
    execution_block_cb: Callable[[ExecutionBlocker], Any] | None = None,
    pre_execute_cb: Callable[[int], Any] | None = None,
) -> list[Any]:
    """Call a method of a node once per list item, as the engine does; for packs that do the same on their own.

    A pack may put a function of its own in its place: then that makes the calls of each node of a run.

    Returns:
        What each call returned; coroutines are waited for, except where a run calls this: it gets tasks.
    """
    is_list = bool(getattr(obj, "INPUT_IS_LIST", False))
    leave_tasks = run_waits.get()
    run_waits.set(False)  # not for nodes that call this themselves

    def before_call(index: int) -> None:
        if allow_interrupt:
            throw_exception_if_processing_interrupted()
        if pre_execute_cb is not None:
            pre_execute_cb(index)

    results = calling.start_calls(
        getattr(obj, func),
        calling.calls_of(input_data_all, is_list),
        prompt_id=prompt_id,
        node_id=unique_id,
        input_is_list=is_list,
        blocked=execution_block_cb or (lambda blocker: blocker),
        before_call=before_call,
    )
    if leave_tasks:
        return results
    while tasks := calling.tasks_of(results):
        await asyncio.wait(tasks)
    return calling.finished(results)


async def execute(
    server: Any,
    dynprompt: Any,
    caches: Any,
    current_item: str,
    extra_data: dict[str, Any],
    executed: set[str],
    prompt_id: str,
    execution_list: Any,
    pending_subgraph_results: dict[str, Any],
    pending_async_nodes: dict[str, Any],
    ui_outputs: dict[str, Any],
) -> None:
    """Go on with a node of a run, which is `execution_list`. Packs put a function around it, to be told of each node
    that is taken up; of what it is given, the two `pending` are always empty here."""
    await execution_list.take_up(current_item)


_OWN = {function.__name__: function for function in (execute, _async_map_node_over_list)}


class _Rescue:
    """What the engine does for a node that runs out of memory; torch's side of it is `comfy.recovery`."""

    def can_help(self, error: BaseException) -> bool:
        return faults.is_out_of_memory(error) and not faults.is_device_lost(error)

    def forget_frames(self, error: BaseException) -> None:
        import comfy.recovery

        comfy.recovery.forget_frames(error)

    def make_room(self) -> None:
        import comfy.recovery

        try:
            comfy.recovery.make_room()
        except Exception:
            log.warning("models could not be unloaded", exc_info=True)


def _out_of_memory(error: BaseException) -> BaseException:
    import comfy.recovery

    return comfy.recovery.out_of_memory(error)


def _release_everything(run: Run, failure: NodeFailed) -> None:
    """A prompt has failed for want of memory: nothing of it stays on a device."""
    import comfy.recovery

    rescue = _Rescue()
    rescue.forget_frames(failure)
    failure.data = {}
    run.forget(lambda entry: comfy.recovery.is_on_device(entry.outputs))
    run.release()
    rescue.make_room()


def _start_measuring_memory() -> None:
    if "comfy.device_memory" in sys.modules:
        import comfy.recovery

        comfy.recovery.start_measuring()
