"""A prompt that can grow while it runs, and the things that can be wrong with it.

Spec: execution.md sections 5 to 7.
"""

from __future__ import annotations

from typing import Any


class ExecutionBlocker:
    """An output value that says: whoever receives this is not to be run.

    With a message, each direct receiver reports it; None blocks silently.
    """

    __slots__ = ("message",)

    def __init__(self, message: str | None) -> None:
        self.message = message


class NodeNotFoundError(Exception):
    """A link or a caller names a node that is not in the prompt. `node_id`: whose link it is, if it is one."""

    def __init__(self, message: str, node_id: str | None = None) -> None:
        super().__init__(message)
        self.node_id = node_id


class NodeInputError(Exception):
    """An input of a node cannot be what the node, or the prompt, asks for."""


class NodeOutputError(Exception):
    """A node returned something that the engine cannot use."""


class DuplicateNodeError(Exception):
    """A node expanded to a node id that the prompt already has."""


class DependencyCycleError(Exception):
    """Nodes wait for each other. `nodes` lists the ids along the cycle."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__("Dependency cycle detected")
        self.nodes = nodes


class DynamicPrompt:
    """The submitted prompt plus the nodes that expansions have added.

    *parent* of an added node = the node that expanded; *real* = the prompt node on top of the chain;
    *display* = the node of the submitted prompt that stands for it on screen.
    """

    def __init__(self, original_prompt: dict[str, dict]) -> None:
        self.original_prompt = original_prompt
        self._is_working_copy = False
        self.ephemeral_prompt: dict[str, dict] = {}
        self.ephemeral_parents: dict[str, str] = {}
        self.ephemeral_display: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def get_node(self, node_id: str) -> dict[str, Any]:
        """The node's entry.

        Raises:
            NodeNotFoundError: there is no such node.
        """
        node = self.original_prompt.get(node_id)
        if node is None:
            node = self.ephemeral_prompt.get(node_id)
            if node is None:
                raise NodeNotFoundError(f"Node {node_id} is not in the prompt")
        return node

    def has_node(self, node_id: str) -> bool:
        """Whether the prompt has this node, expanded ones included."""
        return node_id in self.original_prompt or node_id in self.ephemeral_prompt

    def add_ephemeral_node(
        self, node_id: str, node_info: dict[str, Any], parent_id: str, display_id: str | None
    ) -> None:
        """Add a node that `parent_id` expanded to.

        Raises:
            DuplicateNodeError: the id is taken.
        """
        if self.has_node(node_id):
            raise DuplicateNodeError(f"Node {parent_id} expanded to a node id that is already in use: {node_id}")
        self.ephemeral_prompt[node_id] = node_info
        self.ephemeral_parents[node_id] = parent_id
        # Both are followed up the chain here, so that asking is O(1) at any depth of expansion.
        self._real[node_id] = self._real.get(parent_id, parent_id)
        shown = display_id if display_id else parent_id
        self.ephemeral_display[node_id] = self.ephemeral_display.get(shown, shown)

    def get_real_node_id(self, node_id: str) -> str:
        """The node of the submitted prompt that this one comes from (itself, if it was submitted)."""
        return self._real.get(node_id, node_id)

    def get_parent_node_id(self, node_id: str) -> str | None:
        """The node that expanded to this one; None for a submitted node."""
        return self.ephemeral_parents.get(node_id)

    def get_display_node_id(self, node_id: str) -> str:
        """The node to show this one on."""
        return self.ephemeral_display.get(node_id, node_id)

    def all_node_ids(self) -> set[str]:
        """Ids of all nodes, expanded ones included."""
        return set(self.original_prompt) | set(self.ephemeral_prompt)

    def work_on_copy(self) -> None:
        """From now on nodes may be changed without the submitted prompt being changed.

        Called before a node gets to see the prompt; most prompts have none that does before it ends.
        """
        if not self._is_working_copy:
            self._is_working_copy = True
            self.original_prompt = {
                node_id: {**node, "inputs": dict(node.get("inputs") or {})}
                for node_id, node in self.original_prompt.items()
            }

    def note(self, node_id: str, key: str, value: Any) -> None:
        """Add an entry to a node, in this run's view of the prompt only."""
        if node_id in self.ephemeral_prompt:
            self.ephemeral_prompt[node_id][key] = value
        elif self._is_working_copy:
            self.original_prompt[node_id][key] = value
        else:
            self.original_prompt[node_id] = {**self.original_prompt[node_id], key: value}

    def get_original_prompt(self) -> dict[str, dict]:
        """The submitted prompt (the working copy of this run)."""
        return self.original_prompt
