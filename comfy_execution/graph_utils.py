"""Writing pieces of graph in code: what an expanding node uses to describe what it expands to.

Spec: node-api.md 2.5 and execution.md section 6 (ids, prefixes).
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from comfy_execution.graph import ExecutionBlocker
from comfy_execution.links import is_link

__all__ = ["ExecutionBlocker", "GraphBuilder", "Node", "add_graph_prefix", "is_link"]


@dataclass
class _PrefixState:
    root: str
    call_index: int
    graph_index: int


# A context variable, not a class attribute: calls of coroutine nodes overlap, and each needs its own count.
_prefix_state: ContextVar[_PrefixState | None] = ContextVar("graph_builder_prefix", default=None)


@dataclass
class Node:
    """One node of a graph under construction."""

    id: str
    class_type: str
    inputs: dict[str, Any] = field(default_factory=dict)
    override_display_id: str | None = None

    def out(self, index: int) -> list:
        """The link to output `index` of this node."""
        return [self.id, index]

    def set_input(self, key: str, value: Any) -> None:
        """Set an input to a constant or a link; None removes it."""
        if value is None:
            self.inputs.pop(key, None)
        else:
            self.inputs[key] = value

    def get_input(self, key: str) -> Any:
        """The value or link of an input, None when it has none."""
        return self.inputs.get(key)

    def set_override_display_id(self, override_display_id: str | None) -> None:
        """Show this node on behalf of another node of the submitted prompt."""
        self.override_display_id = override_display_id

    def serialize(self) -> dict[str, Any]:
        """The node as an entry of a prompt."""
        entry: dict[str, Any] = {"class_type": self.class_type, "inputs": self.inputs}
        if self.override_display_id is not None:
            entry["override_display_id"] = self.override_display_id
        return entry


class GraphBuilder:
    """Builds a graph with ids that no other builder hands out.

    `prefix` stands before every id; by default it is `{expanding node}.{call}.{builder}.`.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = GraphBuilder.alloc_prefix() if prefix is None else prefix
        self.nodes: dict[str, Node] = {}
        self.id_gen = 1

    @classmethod
    def set_default_prefix(cls, prefix_root: str, call_index: int, graph_index: int = 0) -> None:
        """Name the node and the call that the builders made from here on belong to."""
        _prefix_state.set(_PrefixState(prefix_root, call_index, graph_index))

    @classmethod
    def alloc_prefix(
        cls, root: str | None = None, call_index: int | None = None, graph_index: int | None = None
    ) -> str:
        """The next unused prefix; parts that are given replace the counted ones."""
        state = _prefix_state.get()
        if state is None:
            state = _PrefixState("", 0, 0)
            _prefix_state.set(state)
        parts = (
            state.root if root is None else root,
            state.call_index if call_index is None else call_index,
            state.graph_index if graph_index is None else graph_index,
        )
        prefix = "".join(f"{part}." for part in parts)
        if graph_index is None:
            state.graph_index += 1
        return prefix

    def node(self, class_type: str, id: str | None = None, **kwargs: Any) -> Node:
        """Add a node, or return the one that already has this id. Inputs given as None are left out."""
        if id is None:
            id = str(self.id_gen)
            self.id_gen += 1
        full_id = self.prefix + id
        if full_id not in self.nodes:
            inputs = {key: value for key, value in kwargs.items() if value is not None}
            self.nodes[full_id] = Node(full_id, class_type, inputs)
        return self.nodes[full_id]

    def lookup_node(self, id: str) -> Node | None:
        """The node that was added under this id (without prefix)."""
        return self.nodes.get(self.prefix + id)

    def finalize(self) -> dict[str, dict]:
        """The graph as a prompt: node id -> node."""
        return {node_id: node.serialize() for node_id, node in self.nodes.items()}

    def replace_node_output(self, node_id: str, index: int, new_value: Any) -> None:
        """Wherever output `index` of a node (id without prefix) is linked, put `new_value`; None unlinks."""
        full_id = self.prefix + node_id
        for node in self.nodes.values():
            hits = [k for k, v in node.inputs.items() if is_link(v) and v[0] == full_id and v[1] == index]
            for key in hits:
                node.set_input(key, new_value)

    def remove_node(self, id: str) -> None:
        """Take out the node with this id (without prefix)."""
        del self.nodes[self.prefix + id]


def add_graph_prefix(graph: dict[str, dict], outputs: Any, prefix: str) -> tuple[dict[str, dict], tuple]:
    """Rename every node of `graph` to `prefix + id`, links and `outputs` included.

    Returns:
        The renamed graph and the outputs as a tuple (links are rewritten, values stay).
    """

    def rename(value: Any) -> Any:
        if is_link(value):
            return [prefix + value[0], value[1]]
        return value

    renamed = {
        prefix + node_id: {**node, "inputs": {k: rename(v) for k, v in node.get("inputs", {}).items()}}
        for node_id, node in graph.items()
    }
    return renamed, tuple(rename(value) for value in outputs)
