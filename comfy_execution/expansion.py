"""A node that has returned a graph: adding it to the prompt, and taking the node's result from it (spec section 6)."""

from __future__ import annotations

from comfy_execution.caching import CacheEntry
from comfy_execution.calling import CallResult, place_expanded, slots_of
from comfy_execution.facts import FactsBook, NodeFacts
from comfy_execution.graph import DynamicPrompt, NodeOutputError
from comfy_execution.links import is_link
from comfy_execution.results import RunResults


class Expansion:
    """The answers of a node's calls, at least one of which holds a graph."""

    def __init__(self, node_id: str, facts: NodeFacts, results: list[CallResult]) -> None:
        self.node_id = node_id
        self.facts = facts
        self.results = results

    def add_to(self, prompt: DynamicPrompt, book: FactsBook) -> list[str]:
        """Add the nodes of all calls to the prompt. Returns their ids.

        Raises:
            NodeOutputError: an entry of a graph is no node, or names a class that does not exist.
            DuplicateNodeError: an id is taken.
        """
        added = []
        for result in self.results:
            for node_id, node in (result.expand or {}).items():
                self._check(node_id, node, book)
                prompt.add_ephemeral_node(node_id, node, self.node_id, node.get("override_display_id"))
                added.append(node_id)
        return added

    def _check(self, node_id: object, node: object, book: FactsBook) -> None:
        where = f"Node {self.node_id} ({self.facts.class_type}) expanded to a graph in which"
        if not isinstance(node_id, str) or not isinstance(node, dict):
            raise NodeOutputError(f"{where} {node_id!r} is no node")
        if not book.knows(node.get("class_type")):
            raise NodeOutputError(f"{where} node {node_id} has an unknown class: {node.get('class_type')!r}")
        node.setdefault("inputs", {})
        if not isinstance(node["inputs"], dict):
            raise NodeOutputError(f"{where} the inputs of node {node_id} are no dict")

    def sources(self) -> list[str]:
        """The nodes that the result is taken from, in the order of the outputs."""
        found: dict[str, None] = {}
        for result in self.results:
            if result.expand is not None:
                for value in slots_of(result.values, self.facts):
                    if is_link(value):
                        found[value[0]] = None
        return list(found)

    def outputs(self, results: RunResults) -> list[list]:
        """The values of every slot, now that all sources have run.

        Raises:
            NodeOutputError: a result link names a slot that its node did not fill.
        """
        rows = [(slots_of(result.values, self.facts), result.expand is not None) for result in self.results]
        outputs = []
        for slot in range(min(len(values) for values, _ in rows)):
            column: list = []
            for values, expanded in rows:
                value = values[slot]
                linked = expanded and is_link(value)
                if linked:
                    value = self._fetch(value, slot, results.get(value[0]))
                place_expanded(column, value, linked, self.facts, self.node_id, slot)
            outputs.append(column)
        return outputs

    def _fetch(self, link: list, slot: int, entry: CacheEntry | None) -> list:
        if entry is None or not 0 <= link[1] < len(entry.outputs):
            raise NodeOutputError(
                f"Output {slot} of node {self.node_id} ({self.facts.class_type}) is to come from output {link[1]} of "
                f"node {link[0]}, which has returned {0 if entry is None else len(entry.outputs)} value(s)"
            )
        return entry.outputs[link[1]]
