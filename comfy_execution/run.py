"""One run of one prompt, from the first signature to the last node (spec execution.md sections 3 to 7).

Everything here happens in the worker's thread, on an event loop made for this run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from comfy.interrupt import InterruptProcessingException, throw_exception_if_processing_interrupted
from comfy_execution import calling, external_cache
from comfy_execution.arguments import Arguments, gather
from comfy_execution.caching import CacheEntry, ObjectStore, ResultCache
from comfy_execution.calling import CallResult
from comfy_execution.expansion import Expansion
from comfy_execution.facts import FactsBook, FactsByNode, NodeFacts, nested
from comfy_execution.fingerprints import ask_fingerprints
from comfy_execution.forced import forced_nodes
from comfy_execution.graph import DynamicPrompt, ExecutionBlocker, NodeNotFoundError
from comfy_execution.links import is_link
from comfy_execution.progress import ProgressRegistry
from comfy_execution.results import RunResults
from comfy_execution.run_company import Announcer, Hooks, Rescue
from comfy_execution.schedule import Schedule
from comfy_execution.signatures import Signatures
from comfy_execution.strict import InputGuard

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25  # how often a run that waits for coroutines looks whether it is to end
_STORE_SECONDS = 10.0  # how long a run waits, at its end, for stores outside of the process


class Outcome(Enum):
    """What became of a node that was taken up."""

    DONE = auto()
    WAITING = auto()  # for other nodes
    ASIDE = auto()  # for coroutines


class NodeFailed(Exception):
    """A node ended with the exception `cause`; `data` are its inputs as far as they had been gathered."""

    def __init__(self, node_id: str, cause: BaseException, data: dict[str, Any] | None = None) -> None:
        super().__init__(f"node {node_id} failed")
        self.node_id = node_id
        self.cause = cause
        self.data = data or {}


class _NodesOf(Container[tuple[str, str]]):
    """The (node id, class) pairs of a prompt, of which few are ever asked for."""

    def __init__(self, prompt: Mapping[str, dict]) -> None:
        self._prompt = prompt

    def __contains__(self, pair: object) -> bool:
        node_id, class_type = pair
        node = self._prompt.get(node_id)
        return node is not None and node["class_type"] == class_type


@dataclass
class _Calls:
    """A node whose calls have been made."""

    results: list[Any]
    arguments: Arguments
    started: float
    guard: InputGuard | None = None


class Run:
    """The state of one run.

    Args:
        prompt: the prompt; the dict is the run's own, its nodes are shared and left as they are.
        outputs: the output nodes to execute, in order.
        extra_data: the prompt's extra data, secrets included.
        strict: nodes get copies of tensors, and changes to them are reported (see `comfy_execution.strict`).
        rescue: asked when a node runs out of memory; None: such a node simply fails.
        hooks: what packs have put around each node; None: nothing.
    """

    def __init__(
        self,
        prompt_id: str,
        prompt: dict[str, dict],
        outputs: list[str],
        extra_data: Mapping[str, Any],
        cache: ResultCache,
        objects: ObjectStore,
        announcer: Announcer,
        registry_for: Any,
        strict: bool = False,
        rescue: Rescue | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.prompt_id = prompt_id
        self.prompt = DynamicPrompt(prompt)
        self.outputs = outputs
        self.extra_data = extra_data
        self.cache = cache
        self.objects = objects
        self.announcer = announcer
        self.strict = strict
        self.rescue = rescue
        self.hooks = hooks
        self.steps = 0  # how often a node has been taken up
        self._rescued: set[str] = set()  # nodes that have had their second try
        self.progress: ProgressRegistry = registry_for(prompt_id, self.prompt)
        self.book = FactsBook(running=True)
        self._facts = facts = FactsByNode(self.prompt, self.book)
        self.signatures: Signatures | None = None
        self.results: RunResults
        self.schedule = Schedule(
            self.prompt,
            is_output=lambda node_id: facts[node_id].is_output,
            is_async=lambda node_id: facts[node_id].is_async,
            lazy_inputs=self._lazy_inputs,
            has_result=lambda node_id: self.results.get(node_id) is not None,
        )
        self.executed: set[str] = set()
        self.ui_outputs: dict[str, dict[str, Any]] = {}
        self._requested: dict[str, set[str]] = {}
        self._calls: dict[str, _Calls] = {}
        self._expansions: dict[str, Expansion] = {}
        self._stores: list[asyncio.Future] = []

    # --- the run -----------------------------------------------------------------------------------------

    async def execute(self) -> None:
        """Execute the outputs and what they need.

        Raises:
            NodeFailed: a node raised; nothing else runs.
            DependencyCycleError: nodes wait for each other.
        """
        await self._prepare()
        try:
            for output in self.outputs:
                self._adding(output)
            while True:
                node_id = self.schedule.take()
                if node_id is None:
                    if not len(self.schedule):
                        break
                    await self._wait_for_coroutines()
                    continue
                entry = self._finished_before(node_id)
                if entry is not None:
                    self._report_cached(node_id, entry)
                    self.schedule.complete(node_id)
                elif self.hooks is not None:
                    await self.hooks.step(self, node_id)
                else:
                    await self.take_up(node_id)
                if self.schedule.waiting_outside:
                    await asyncio.sleep(0)  # coroutines advance between plain nodes
        finally:
            for calls in self._calls.values():
                calling.abandon(calls.results)
        self._resend_intermediate()
        if self._stores:
            await asyncio.wait(self._stores, timeout=_STORE_SECONDS)

    async def _prepare(self) -> None:
        original = self.prompt.original_prompt
        nodes = _NodesOf(original)
        if self.cache.keeps_results:
            await ask_fingerprints(self.prompt, list(original), self.book)
            self.signatures = Signatures(self.prompt, self._own_id)
            self.signatures.compute(original)
            self.cache.begin(self.signatures.keys(), nodes)
        else:
            self.cache.begin((), nodes)
        self.objects.begin(original)
        forced = forced_nodes(self.extra_data.get("force"), original)
        self.results = RunResults(self.prompt, self.cache, self.signatures, forced)
        if self.signatures is not None and external_cache.providers():
            for node_id in original:
                await self._look_outside(node_id)
        stored = self.results.submitted()
        self.cache.counts.hits += len(stored)
        self.announcer.record("execution_cached", {"nodes": stored, "prompt_id": self.prompt_id})

    def _drop_unneeded(self) -> None:
        self.results.keep_only(self.schedule)

    async def _wait_for_coroutines(self) -> None:
        if not self.schedule.waiting_outside:
            raise self.schedule.cycle()
        tasks = [task for calls in self._calls.values() for task in calling.tasks_of(calls.results)]
        if tasks:
            await self._wait_for(tasks, next(iter(self._calls)))
        await asyncio.sleep(0)  # lets the callbacks run that put the nodes back

    async def _wait_for(self, tasks: list[asyncio.Task], node_id: str) -> None:
        """Wait until one of the coroutines, among them those of this node, has ended. Raises NodeFailed if the run is
        to end at once."""
        while True:
            done, _ = await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            if self.announcer.must_leave():
                raise NodeFailed(node_id, InterruptProcessingException())

    def _adding(self, node_id: str) -> None:
        try:
            self.schedule.add(node_id)
        except NodeNotFoundError as error:
            raise NodeFailed(error.node_id or node_id, error) from error
        except Exception as error:
            raise NodeFailed(node_id, error) from error

    # --- one node ------------------------------------------------------------------------------------------

    def _finished_before(self, node_id: str) -> CacheEntry | None:
        """The result of a node that was there before the node was taken up: it, or a twin of it, has run."""
        if node_id in self._calls or node_id in self._expansions:
            return None
        return self.results.get(node_id)

    async def take_up(self, node_id: str) -> None:
        """Go on with a node as far as it goes now."""
        self.steps += 1
        outcome = await self._process(node_id)
        if outcome is Outcome.DONE:
            self.schedule.complete(node_id)
            self.cache.relieve(self._drop_unneeded)
        elif outcome is Outcome.WAITING:
            self.schedule.put_back(node_id)

    async def _process(self, node_id: str) -> Outcome:
        """Go on with a node; one that runs out of memory is run once more when there is room."""
        try:
            return await self._attempt(node_id)
        except NodeFailed as failure:
            if self.rescue is None or failure.node_id != node_id or node_id in self._rescued:
                raise
            if not self.rescue.can_help(failure.cause):
                raise
            self.rescue.forget_frames(failure)
        # Not in the handler: there the error would keep alive what is to be freed.
        log.warning("prompt %s: node %s ran out of memory and is run once more", self.prompt_id, node_id)
        self._rescued.add(node_id)
        self.rescue.make_room()
        return await self._attempt(node_id)

    async def _attempt(self, node_id: str) -> Outcome:
        try:
            calls = self._calls.pop(node_id, None)
            if calls is not None:
                return await self._finish_calls(node_id, calls)
            if node_id in self._expansions:
                return self._finish_expansion(node_id)
            return await self._start(node_id)
        except NodeFailed:
            raise
        except BaseException as error:
            raise NodeFailed(node_id, error) from error

    async def _start(self, node_id: str) -> Outcome:
        self.progress.start_progress(node_id)
        self.announcer.node_starts(node_id, self.prompt.get_display_node_id(node_id))
        facts = self._facts[node_id]
        arguments = None
        try:
            arguments = gather(
                node_id, facts, self.prompt, self.results, self.extra_data, self._requested.get(node_id, ())
            )
            guard = self._guard(node_id, arguments)
            instance = self._instance(node_id, facts, arguments)
            if facts.has_lazy_check and await self._ask_lazy(node_id, facts, instance, arguments):
                return Outcome.WAITING
            mapping = None if self.hooks is None or arguments.spec.dynamic_roots else self.hooks.mapping()
            if mapping is None:
                calls = self._call(node_id, facts, instance, arguments)
            else:
                calls = await self._call_through(mapping, node_id, facts, instance, arguments)
            calls.guard = guard
            if calling.tasks_of(calls.results):
                await asyncio.sleep(0)  # a coroutine that does not wait ends here
                if calling.tasks_of(calls.results) and not calling.any_failed(calls.results):
                    self._set_aside(node_id, calls)
                    return Outcome.ASIDE
            return await self._finish_calls(node_id, calls)
        except NodeFailed:
            raise
        except BaseException as error:
            data = arguments.data if arguments is not None else {}
            raise NodeFailed(node_id, error, data) from error

    def _guard(self, node_id: str, arguments: Arguments) -> InputGuard | None:
        """In strict mode: put copies of the tensors in the place of other nodes' results."""
        if not self.strict:
            return None
        inputs = self.prompt.get_node(node_id).get("inputs", {})
        guard = InputGuard(arguments.data, [name for name, value in inputs.items() if is_link(value)])
        arguments.data = guard.data
        return guard

    def _instance(self, node_id: str, facts: NodeFacts, arguments: Arguments) -> Any:
        if facts.is_v3:
            return facts.cls.PREPARE_CLASS_CLONE(arguments.hidden)
        return self.objects.get(self.prompt, node_id, facts.class_type, facts.cls)

    async def _ask_lazy(self, node_id: str, facts: NodeFacts, instance: Any, arguments: Arguments) -> bool:
        """Let a node say which lazy inputs it needs. Returns whether it needs any more, and is to be asked again."""
        answers = calling.start_calls(
            instance.check_lazy_status,
            self._keyword_arguments(facts, arguments, with_names=True),
            prompt_id=self.prompt_id,
            node_id=node_id,
            input_is_list=facts.input_is_list,
            blocked=lambda blocker: None,
        )
        while tasks := calling.tasks_of(answers):
            await self._wait_for(tasks, node_id)
        wanted: dict[str, None] = {}
        for answer in calling.finished(answers):
            if isinstance(answer, list):
                wanted.update(dict.fromkeys(answer))
        inputs = self.prompt.get_node(node_id).get("inputs", {})
        new = [name for name in wanted if name in arguments.missing or name not in inputs]
        self.schedule.request(node_id, new)
        self._requested.setdefault(node_id, set()).update(new)
        return bool(new)

    def _keyword_arguments(self, facts: NodeFacts, arguments: Arguments, with_names: bool = False) -> Any:
        calls = calling.calls_of(arguments.data, facts.input_is_list)
        if facts.is_v3:
            return (nested(arguments.spec, call, with_names=with_names) for call in calls)
        return calls

    def _call(self, node_id: str, facts: NodeFacts, instance: Any, arguments: Arguments) -> _Calls:
        started = time.perf_counter()
        results = calling.start_calls(
            getattr(instance, facts.function_name),
            self._keyword_arguments(facts, arguments),
            prompt_id=self.prompt_id,
            node_id=node_id,
            input_is_list=facts.input_is_list,
            blocked=self._when_blocked(node_id, facts),
            before_call=self._before_call,
        )
        return _Calls(results, arguments, started)

    async def _call_through(
        self,
        mapping: Callable[..., Awaitable[list[Any]]],
        node_id: str,
        facts: NodeFacts,
        instance: Any,
        arguments: Arguments,
    ) -> _Calls:
        """As `_call`, by what a pack has put in its place."""
        started = time.perf_counter()
        results = await mapping(
            self.prompt_id,
            node_id,
            instance,
            arguments.data,
            facts.function_name,
            allow_interrupt=True,
            execution_block_cb=self._when_blocked(node_id, facts),
            pre_execute_cb=self._before_call,
        )
        return _Calls(list(results), arguments, started)

    def _when_blocked(self, node_id: str, facts: NodeFacts) -> Callable[[ExecutionBlocker], ExecutionBlocker]:
        """What a node's calls are answered with that are not made; each message is reported once."""
        reported: set[str] = set()

        def blocked(blocker: ExecutionBlocker) -> ExecutionBlocker:
            if blocker.message is not None and blocker.message not in reported:
                reported.add(blocker.message)
                self._report_blocked(node_id, facts, blocker.message)
            return ExecutionBlocker(None)

        return blocked

    def _set_aside(self, node_id: str, calls: _Calls) -> None:
        """Leave a node to its coroutines; it comes back when all have ended, or the first has failed."""
        self._calls[node_id] = calls
        resume = self.schedule.set_aside(node_id)
        resumed = False

        def on_done(_task: asyncio.Task) -> None:
            nonlocal resumed
            over = not calling.tasks_of(calls.results) or calling.any_failed(calls.results)
            if over and not resumed and node_id in self._calls:
                resumed = True
                resume()

        for task in calling.tasks_of(calls.results):
            task.add_done_callback(on_done)

    async def _finish_calls(self, node_id: str, calls: _Calls) -> Outcome:
        facts = self._facts[node_id]
        try:
            values = calling.finished(calls.results)
            results = [calling.normalize(value, facts, node_id) for value in values]
            ui = calling.merge_ui(results, facts, node_id)
            if ui is not None or facts.is_output:
                self._stop_if_unwanted()
            if ui is not None:
                self._show(node_id, ui)
            if any(result.expand is not None for result in results):
                return await self._expand(node_id, facts, results)
            outputs = calling.merge_values(results, facts, node_id)
        except NodeFailed:
            raise
        except BaseException as error:
            calling.abandon(calls.results)
            raise NodeFailed(node_id, error, calls.arguments.data) from error
        if calls.guard is not None and (changed := calls.guard.changed()):
            self._report_changed(node_id, facts, changed)
        self._done(node_id, outputs, time.perf_counter() - calls.started)
        return Outcome.DONE

    def _stop_if_unwanted(self) -> None:
        """What a node wants to show, or did, comes too late if the run was told to stop, although it never looked."""
        if self.announcer.result_unwanted():
            raise InterruptProcessingException

    def _before_call(self, _index: int) -> None:
        throw_exception_if_processing_interrupted()
        self._stop_if_unwanted()  # a node may have swallowed the interrupt

    def _done(self, node_id: str, outputs: list[list], seconds: float) -> None:
        entry = CacheEntry(outputs, self.ui_outputs.get(node_id), seconds)
        self.results.put(node_id, entry)
        self.executed.add(node_id)
        self._requested.pop(node_id, None)
        if self.signatures is not None and external_cache.providers():
            self._store_outside(node_id, entry)
        self.progress.finish_progress(node_id)

    def release(self) -> None:
        """The run is over: hold on to no results any more. The run itself is part of reference cycles and stays in
        memory until the next collection."""
        results = getattr(self, "results", None)
        if results is not None:
            results.release()
        self._calls.clear()
        self._expansions.clear()

    def forget(self, condition: Callable[[CacheEntry], bool]) -> None:
        """Drop the results of this run that a condition holds for, from the cache, too."""
        for node_id in self.executed:
            entry = self.results.stored(node_id)
            if entry is not None and condition(entry):
                self.results.forget(node_id)

    # --- expansion --------------------------------------------------------------------------------------------

    async def _expand(self, node_id: str, facts: NodeFacts, results: list[CallResult]) -> Outcome:
        expansion = Expansion(node_id, facts, results)
        added = expansion.add_to(self.prompt, self.book)
        sources = expansion.sources()
        self.results.also_needs(node_id, set(sources))
        self.results.count_consumers({inner: self.prompt.get_node(inner) for inner in added})
        if self.signatures is not None:
            await ask_fingerprints(self.prompt, added, self.book)
            self.signatures.compute(added)
            keys = {self.signatures[inner] for inner in added}
            nodes = {(inner, self.prompt.get_node(inner)["class_type"]) for inner in added}
            self.cache.expand(self.results.inner_scope(node_id), keys, nodes)
        self._expansions[node_id] = expansion
        for inner in added:
            if self._facts[inner].is_output:
                self.schedule.add(inner)
        for source in sources:
            self.schedule.wait(node_id, source)
        return Outcome.WAITING

    def _finish_expansion(self, node_id: str) -> Outcome:
        expansion = self._expansions.pop(node_id)
        self._done(node_id, expansion.outputs(self.results), 0.0)
        return Outcome.DONE

    # --- reports ----------------------------------------------------------------------------------------------

    def _show(self, node_id: str, ui: dict[str, Any]) -> None:
        display_id = self.prompt.get_display_node_id(node_id)
        self.ui_outputs[node_id] = {
            "output": ui,
            "meta": {
                "node_id": node_id,
                "display_node": display_id,
                "parent_node": self.prompt.get_parent_node_id(node_id),
                "real_node_id": self.prompt.get_real_node_id(node_id),
            },
        }
        self._send_executed(node_id, ui)

    def _send_executed(self, node_id: str, output: dict[str, Any] | None) -> None:
        data = {
            "node": node_id,
            "display_node": self.prompt.get_display_node_id(node_id),
            "output": output,
            "prompt_id": self.prompt_id,
        }
        self.announcer.send("executed", data)

    def _report_cached(self, node_id: str, entry: CacheEntry) -> None:
        if self.announcer.result_unwanted():
            raise NodeFailed(node_id, InterruptProcessingException())
        if entry.ui is not None:
            self.ui_outputs[node_id] = entry.ui
        self._send_executed(node_id, entry.ui["output"] if entry.ui is not None else None)
        self.progress.finish_progress(node_id)

    def _resend_intermediate(self) -> None:
        """Nodes that show something on the way and did not run show again what they showed then (section 10)."""
        if not self.book.any_intermediate_output():
            return
        for node_id in self.prompt.original_prompt:
            if node_id in self.ui_outputs or not self._facts[node_id].has_intermediate_output:
                continue
            entry = self.results.stored(node_id)
            if entry is not None and entry.ui is not None:
                self.ui_outputs[node_id] = entry.ui
                self._send_executed(node_id, entry.ui["output"])

    def _report_blocked(self, node_id: str, facts: NodeFacts, message: str) -> None:
        """A blocker with a message reached a node: tell the client, as an error that ends nothing (section 7)."""
        real_id = self.prompt.get_real_node_id(node_id)
        data = {
            "prompt_id": self.prompt_id,
            "node_id": real_id,
            "node_type": self.prompt.get_node(real_id)["class_type"],
            "executed": sorted(self.executed),
            "exception_message": f"Execution Blocked: {message}",
            "exception_type": "ExecutionBlocked",
            "traceback": [],
            "current_inputs": [],
            "current_outputs": [],
        }
        self.announcer.send("execution_error", data)

    def _report_changed(self, node_id: str, facts: NodeFacts, inputs: list[str]) -> None:
        """A node wrote to tensors that are other nodes' results: say so in the log, to the client, in the history."""
        real_id = self.prompt.get_real_node_id(node_id)
        names = ", ".join(inputs)
        log.warning(
            "prompt %s: node %s (%s) changes its input in place: %s", self.prompt_id, real_id, facts.class_type, names
        )
        data = {"prompt_id": self.prompt_id, "node_id": real_id, "node_type": facts.class_type, "inputs": inputs}
        self.announcer.record("input_changed", data)

    # --- stores outside ----------------------------------------------------------------------------------------

    def _outside_context(self, node_id: str) -> external_cache.CacheContext | None:
        if self.prompt.get_parent_node_id(node_id) is not None or not self.signatures.is_stable(node_id):
            return None
        class_type = self.prompt.get_node(node_id)["class_type"]
        return external_cache.CacheContext(node_id, class_type, self.signatures[node_id].hex())

    async def _look_outside(self, node_id: str) -> None:
        context = self._outside_context(node_id)
        if context is not None and self.results.stored(node_id) is None:
            value = await external_cache.look_up(context)
            if value is not None:
                self.cache.put(self.cache.scope(), self.signatures[node_id], CacheEntry(value.outputs, value.ui))

    def _store_outside(self, node_id: str, entry: CacheEntry) -> None:
        context = self._outside_context(node_id)
        if context is not None:
            value = external_cache.CacheValue(entry.outputs, entry.ui)
            self._stores.append(asyncio.ensure_future(external_cache.store(context, value)))

    # --- what a node is ----------------------------------------------------------------------------------------

    def _lazy_inputs(self, node_id: str) -> frozenset[str]:
        inputs = self.prompt.get_node(node_id).get("inputs", {})
        return self._facts[node_id].inputs(inputs).lazy(inputs)

    def _own_id(self, class_type: str) -> bool:
        facts = self.book[class_type]
        return facts.not_idempotent or facts.wants_unique_id
