"""Nodes that are to run although their results are known: the field `force` of a prompt (docs/clients.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_execution.links import links_of


def forced_nodes(force: Any, prompt: Mapping[str, Any]) -> frozenset[str]:
    """The ids of a prompt's nodes that `force` means: all for true; else those of a list, and what depends on them."""
    if force is True:
        return frozenset(prompt)
    if not isinstance(force, list):
        return frozenset()
    dependants: dict[str, list[str]] = {}
    for node_id, node in prompt.items():
        for _, link in links_of(node):
            dependants.setdefault(link[0], []).append(node_id)
    found: set[str] = set()
    todo = [node_id for node_id in force if isinstance(node_id, str) and node_id in prompt]
    while todo:
        node_id = todo.pop()
        if node_id not in found:
            found.add(node_id)
            todo += dependants.get(node_id, ())
    return frozenset(found)
