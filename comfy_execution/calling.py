"""Calling node functions, once or once per list item, and putting their answers together (spec execution.md, 5.2)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from comfy.interrupt import throw_exception_if_processing_interrupted
from comfy_execution import jsonbytes
from comfy_execution.facts import NodeFacts
from comfy_execution.graph import ExecutionBlocker, NodeOutputError
from comfy_execution.graph_utils import GraphBuilder
from comfy_execution.utils import CurrentNodeContext


@dataclass
class CallResult:
    """The answer of one call in one form: values per slot (or one blocker for all), UI data, graph."""

    values: tuple | list | ExecutionBlocker
    ui: dict | None = None
    expand: dict | None = None


def calls_of(data: dict[str, list | tuple], input_is_list: bool) -> Iterator[dict[str, Any]]:
    """The keyword arguments of each call of a node.

    With `input_is_list` one call takes whole lists. Otherwise call i takes item i of each list, or the last item of
    lists that are shorter; a list without any item then has no last item, which is an IndexError.
    """
    if input_is_list:
        yield {name: list(values) if isinstance(values, list) else values for name, values in data.items()}
        return
    longest = max(map(len, data.values()), default=0)
    if longest == 0:
        yield {}
        return
    for index in range(longest):
        arguments = {}
        for name, values in data.items():
            if not values:
                raise IndexError(f"Input {name!r} is an empty list, while other inputs have items")
            arguments[name] = values[index] if index < len(values) else values[-1]
        yield arguments


def find_blocker(arguments: dict[str, Any], input_is_list: bool) -> ExecutionBlocker | None:
    """The first blocker among the arguments of a call."""
    for value in arguments.values():
        if isinstance(value, ExecutionBlocker):
            return value
        if input_is_list and isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, ExecutionBlocker):
                    return item
    return None


class Failure:
    """An exception a coroutine ended with, as a value: BaseExceptions must not reach the event loop."""

    __slots__ = ("exception",)

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception


async def _guarded(coroutine: Any, prompt_id: str, node_id: str, index: int) -> Any:
    GraphBuilder.set_default_prefix(node_id, index)
    with CurrentNodeContext(prompt_id, node_id, index):
        try:
            return await coroutine
        except asyncio.CancelledError as exception:
            task = asyncio.current_task()
            if task is not None and getattr(task, "abandoned", False):
                raise
            return Failure(exception)
        except BaseException as exception:
            return Failure(exception)


class _NodeTask(asyncio.Task):
    """A task that knows whether it was the engine that cancelled it."""

    abandoned = False


def start_calls(
    function: Callable,
    calls: Iterator[dict[str, Any]],
    *,
    prompt_id: str,
    node_id: str,
    input_is_list: bool,
    blocked: Callable[[ExecutionBlocker], Any],
    before_call: Callable[[int], Any] = lambda _index: throw_exception_if_processing_interrupted(),
) -> list[Any]:
    """Make every call.

    Args:
        blocked: what stands for a call that is not made because of a blocker.
        before_call: called with the number of each call; by default looks at the interrupt flag.

    Returns:
        One item per call: what it returned, or a task for a coroutine that is still to be waited for.
    """
    results: list[Any] = []
    try:
        for index, arguments in enumerate(calls):
            before_call(index)
            blocker = find_blocker(arguments, input_is_list)
            if blocker is not None:
                results.append(blocked(blocker))
                continue
            GraphBuilder.set_default_prefix(node_id, index)
            with CurrentNodeContext(prompt_id, node_id, index):
                result = function(**arguments)
            if inspect.iscoroutine(result):
                result = _NodeTask(_guarded(result, prompt_id, node_id, index))
            results.append(result)
    except BaseException:
        abandon(results)
        raise
    return results


def abandon(results: list[Any]) -> None:
    """Cancel the coroutines among the results."""
    for result in results:
        if isinstance(result, _NodeTask) and not result.done():
            result.abandoned = True
            result.cancel()


def tasks_of(results: list[Any]) -> list[asyncio.Task]:
    """The coroutines among the results that have not ended yet."""
    return [result for result in results if isinstance(result, asyncio.Task) and not result.done()]


def finished(results: list[Any]) -> list[Any]:
    """The results with ended coroutines replaced by what they returned.

    Raises:
        BaseException: what the first failed coroutine ended with.
    """
    values = []
    for result in results:
        if isinstance(result, asyncio.Task):
            result = result.result() if not result.cancelled() else Failure(asyncio.CancelledError())
            if isinstance(result, Failure):
                raise result.exception
        values.append(result)
    return values


def any_failed(results: list[Any]) -> bool:
    """Whether a coroutine among the results has ended with an exception."""
    return any(
        isinstance(r, asyncio.Task) and r.done() and (r.cancelled() or isinstance(r.result(), Failure)) for r in results
    )


def normalize(result: Any, facts: NodeFacts, node_id: str) -> CallResult:
    """One form for everything a node function may return.

    Raises:
        TypeError: the value has no length, or is a text, so it cannot be one value per output.
        NodeOutputError: the UI data or the graph is not a dict.
    """
    if facts.is_v3:
        result = facts.cls.NORMALIZED_RESULT(result)
    if isinstance(result, ExecutionBlocker):
        return CallResult(result)
    ui = expand = None
    if isinstance(result, dict):
        ui, expand = result.get("ui"), result.get("expand")
        values = result.get("result", ())
        if isinstance(values, ExecutionBlocker):
            return CallResult(values, ui, expand)
    else:
        values = result
    if ui is not None and not isinstance(ui, dict):
        raise NodeOutputError(f"{_name(facts, node_id)} returned UI data that is no dict but {type(ui).__name__}")
    if expand is not None and not isinstance(expand, dict):
        raise NodeOutputError(f"{_name(facts, node_id)} returned a graph that is no dict but {type(expand).__name__}")
    if values is None and isinstance(result, dict):
        values = ()
    if not isinstance(values, tuple | list):
        if isinstance(values, str | bytes) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
            raise TypeError(
                f"{_name(facts, node_id)} must return a tuple with one value for each of its outputs "
                f"{_types(facts)}, not {type(values).__name__}"
            )
        values = tuple(values[index] for index in range(len(values)))
    return CallResult(values, ui, expand)


def merge_values(results: list[CallResult], facts: NodeFacts, node_id: str) -> list[list]:
    """The values of all calls, per slot: one entry per call, or concatenated for list outputs."""
    rows = [slots_of(result.values, facts) for result in results]
    if not rows:
        return []
    width = min(map(len, rows))
    outputs: list[list] = []
    for slot in range(width):
        if _is_list_slot(facts, slot):
            column: list = []
            for row in rows:
                _extend(column, row[slot], facts, node_id, slot)
        else:
            column = [row[slot] for row in rows]
        outputs.append(column)
    return outputs


def merge_ui(results: list[CallResult], facts: NodeFacts, node_id: str) -> dict[str, Any] | None:
    """The UI data of all calls, key by key, as plain JSON; None when there is none.

    Raises:
        NodeOutputError: a value is no list, or has no JSON form.
    """
    parts = [result.ui for result in results if result.ui]
    if not parts:
        return None
    merged: dict[str, list] = {}
    for part in parts:
        for key, values in part.items():
            try:
                merged.setdefault(key, []).extend(values)
            except TypeError:
                raise NodeOutputError(
                    f"{_name(facts, node_id)} returned UI data whose key {key!r} is no list but {type(values).__name__}"
                ) from None
    try:
        return jsonbytes.plain(merged)
    except (TypeError, ValueError, RecursionError) as error:
        raise NodeOutputError(
            f"{_name(facts, node_id)} returned UI data that cannot be expressed as JSON: {error}"
        ) from error


def place_expanded(column: list, values: list | Any, linked: bool, facts: NodeFacts, node_id: str, slot: int) -> None:
    """Add one result entry of an expansion to the values of a slot: all entries of a link, or one value."""
    if linked:
        column.extend(values)
    elif _is_list_slot(facts, slot):
        _extend(column, values, facts, node_id, slot)
    else:
        column.append(values)


def slots_of(values: tuple | list | ExecutionBlocker, facts: NodeFacts) -> tuple | list:
    if isinstance(values, ExecutionBlocker):
        return (values,) * len(facts.return_types)
    return values


def _is_list_slot(facts: NodeFacts, slot: int) -> bool:
    return slot < len(facts.output_is_list) and bool(facts.output_is_list[slot])


def _extend(column: list, value: Any, facts: NodeFacts, node_id: str, slot: int) -> None:
    if isinstance(value, ExecutionBlocker):
        column.append(value)
        return
    try:
        column.extend(value)
    except TypeError:
        raise TypeError(
            f"{_name(facts, node_id)} must return a list for output {slot} ({_types(facts)[slot : slot + 1]}), "
            f"not {type(value).__name__}"
        ) from None


def _name(facts: NodeFacts, node_id: str) -> str:
    return f"Node {node_id} ({facts.class_type})"


def _types(facts: NodeFacts) -> list[str]:
    return [t if isinstance(t, str) else "COMBO" for t in facts.return_types]
