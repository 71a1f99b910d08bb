"""From a node's inputs to the lists its function is called with (spec execution.md, 5.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from comfy_execution.caching import CacheEntry
from comfy_execution.facts import InputSpec, NodeFacts
from comfy_execution.graph import DynamicPrompt, NodeInputError, NodeNotFoundError
from comfy_execution.links import ConstantList, is_link
from comfy_execution.results import RunResults
from comfy_execution.types import spelled

NOT_FETCHED = (None,)  # what a lazy input that nobody asked for looks like

_FROM_EXTRA_DATA = {
    "AUTH_TOKEN_COMFY_ORG": "auth_token_comfy_org",
    "API_KEY_COMFY_ORG": "api_key_comfy_org",
    "COMFY_USAGE_SOURCE": "comfy_usage_source",
}


@dataclass
class Arguments:
    """A node's gathered inputs.

    `data` maps each argument to its list of values. `missing` names the lazy inputs that have not been fetched.
    """

    data: dict[str, list | tuple]
    missing: frozenset[str]
    spec: InputSpec
    hidden: dict[str, Any]


def gather(
    node_id: str,
    facts: NodeFacts,
    prompt: DynamicPrompt,
    results: RunResults,
    extra_data: Mapping[str, Any],
    requested: Collection[str],
) -> Arguments:
    """The arguments of a node.

    Args:
        requested: the lazy inputs that the node has asked for.

    Raises:
        NodeInputError: a link names a slot that the source did not fill.
    """
    inputs = prompt.get_node(node_id).get("inputs", {})
    spec = facts.inputs(inputs)
    data: dict[str, list | tuple] = {}
    missing = set()
    for name, value in inputs.items():
        declared = spec.find(name)
        if is_link(value) and not (declared is not None and declared.options.get("rawLink")):
            if declared is not None and declared.options.get("lazy") and name not in requested:
                data[name] = NOT_FETCHED
                missing.add(name)
                continue
            entry = results.get(value[0])
            if entry is None:
                raise NodeNotFoundError(f"Input {name!r} of node {node_id}: node {value[0]} has no result")
            data[name] = _slot(node_id, name, value, entry, prompt)
        elif declared is not None or facts.accept_all_inputs:
            data[name] = [list(value) if isinstance(value, ConstantList) else value]
    hidden = hidden_values(spec.hidden, node_id, prompt, extra_data)
    if not facts.is_v3:
        for name, value in hidden.items():
            data[name] = [value]
    return Arguments(data, frozenset(missing), spec, hidden)


def hidden_values(
    declared: Mapping[str, str], node_id: str, prompt: DynamicPrompt | None, extra_data: Mapping[str, Any]
) -> dict[str, Any]:
    """Values of the hidden inputs a class asks for, by argument name."""
    values: dict[str, Any] = {}
    for name, kind in declared.items():
        wanted = spelled(kind)  # some packs declare an input here that is not meant to be seen, with a type
        if wanted == "UNIQUE_ID":
            values[name] = node_id
        elif wanted == "PROMPT":
            if prompt is not None:
                prompt.work_on_copy()
            values[name] = prompt.get_original_prompt() if prompt is not None else {}
        elif wanted == "DYNPROMPT":
            if prompt is not None:
                prompt.work_on_copy()
            values[name] = prompt
        elif wanted == "EXTRA_PNGINFO":
            values[name] = extra_data.get("extra_pnginfo")
        elif wanted in _FROM_EXTRA_DATA:
            values[name] = extra_data.get(_FROM_EXTRA_DATA[wanted])
    return values


def _slot(node_id: str, name: str, link: list, entry: CacheEntry, prompt: DynamicPrompt) -> list:
    slot = link[1]
    try:
        return entry.outputs[slot]
    except (IndexError, TypeError):
        source = prompt.get_node(link[0])
        raise NodeInputError(
            f"Input {name!r} of node {node_id} is linked to output {slot} of node {link[0]} "
            f"({source.get('class_type')}), which returned only {len(entry.outputs)} value(s)"
        ) from None
