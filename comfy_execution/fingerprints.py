"""Asking node classes for fingerprints of what their inputs stand for (spec execution.md 8.3)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from comfy_execution import faults
from comfy_execution.arguments import hidden_values
from comfy_execution.facts import FactsBook, NodeFacts, nested
from comfy_execution.graph import DynamicPrompt
from comfy_execution.links import ConstantList, is_link

log = logging.getLogger(__name__)


async def ask_fingerprints(prompt: DynamicPrompt, node_ids: Iterable[str], book: FactsBook) -> None:
    """Write the fingerprints of these nodes into the prompt as `is_changed`: a list, NaN when it cannot be told.

    Nodes that brought an `is_changed` of their own keep it.
    """
    for node_id in node_ids:
        node = prompt.get_node(node_id)
        facts = book[node["class_type"]]
        if facts.fingerprint is None or "is_changed" in node:
            continue
        try:
            value = await _ask(node_id, node, facts)
        except BaseException as error:
            log.warning("the fingerprint of node %s (%s) failed: %r", node_id, facts.class_type, faults.text_of(error))
            value = float("nan")
        prompt.note(node_id, "is_changed", [value])


async def _ask(node_id: str, node: dict[str, Any], facts: NodeFacts) -> Any:
    inputs = node.get("inputs", {})
    spec = facts.inputs(inputs)
    values: dict[str, Any] = {}
    for name, value in inputs.items():
        declared = spec.find(name)
        if declared is not None or facts.accept_all_inputs:
            raw = declared is not None and declared.options.get("rawLink")
            plain = list(value) if isinstance(value, ConstantList) else value
            values[name] = None if is_link(value) and not raw else plain
    if facts.input_is_list:
        values = {name: [value] for name, value in values.items()}
    if facts.is_v3:
        values = nested(spec, values)
    else:
        values.update(_accepted(facts, hidden_values(spec.hidden, node_id, None, {})))
    value = facts.fingerprint(**values)
    return await value if inspect.isawaitable(value) else value


def _accepted(facts: NodeFacts, hidden: dict[str, Any]) -> dict[str, Any]:
    """The hidden inputs that the function takes; many take none, although the class asks for some."""
    if not hidden:
        return {}
    parameters = inspect.getfullargspec(facts.fingerprint)
    if parameters.varkw is not None:
        return hidden
    names = {*parameters.args, *parameters.kwonlyargs}
    return {name: [value] if facts.input_is_list else value for name, value in hidden.items() if name in names}
