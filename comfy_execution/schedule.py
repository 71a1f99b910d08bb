"""Which node next (spec execution.md, section 4): waiting nodes, what they wait for, and who goes first.

Taking the next node is O(log n) and nothing recurses, so chains of any length and graphs of any width will do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from comfy_execution.graph import DependencyCycleError, DynamicPrompt, NodeInputError, NodeNotFoundError
from comfy_execution.links import is_link, links_of

# Ranks of ready nodes, best first.
_URGENT, _FEEDS_OUTPUT, _FEEDS_FEEDER, _ORDINARY = range(4)


class Schedule:
    """The pending nodes of one run.

    Args:
        prompt: where nodes are looked up.
        is_output, is_async: tell, by node id, whether a node is an output node / a coroutine node.
        lazy_inputs: the names of a node's lazy inputs.
        has_result: whether a node's result is there already, so that nothing has to wait for it.
    """

    def __init__(
        self,
        prompt: DynamicPrompt,
        *,
        is_output: Callable[[str], bool],
        is_async: Callable[[str], bool],
        lazy_inputs: Callable[[str], frozenset[str]],
        has_result: Callable[[str], bool],
    ) -> None:
        self._prompt = prompt
        self._is_output = is_output
        self._is_async = is_async
        self._lazy_inputs = lazy_inputs
        self._has_result = has_result
        self._counter = count()
        self._order: dict[str, int] = {}  # pending node -> when it became pending
        self._rank: dict[str, int] = {}
        self._output: set[str] = set()
        self._sources: dict[str, set[str]] = {}  # pending node -> pending nodes it waits for
        self._consumers: dict[str, list[str]] = {}
        self._outside: dict[str, int] = {}  # nodes set aside, waiting for coroutines
        self._in_hand: set[str] = set()  # taken and not yet completed or put back
        self._heap: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._order

    def pending(self) -> Iterable[str]:
        """Ids of all pending nodes."""
        return self._order.keys()

    @property
    def waiting_outside(self) -> bool:
        """Whether any node has been set aside until a coroutine ends."""
        return bool(self._outside)

    def add(self, node_id: str) -> None:
        """Make a node pending, and then, depth first, the sources it still needs.

        Raises:
            NodeNotFoundError: a link (followed from here) names a node that does not exist.
        """
        stack = [node_id]
        while stack:
            current = stack.pop()
            if current in self._order:
                continue
            self._enter(current)
            if self._has_result(current):
                self._push(current)  # to be reported, which needs none of its sources
                continue
            lazy = self._lazy_inputs(current)
            for name, link in links_of(self._prompt.get_node(current)):
                if name not in lazy and self._wait_for(current, name, link[0]):
                    stack.append(link[0])
            if not self._sources[current]:
                self._push(current)

    def request(self, node_id: str, names: Iterable[str]) -> bool:
        """Fetch lazy inputs of a node in hand.

        Returns:
            Whether the node now has to wait for any of them.

        Raises:
            NodeInputError: the node has no such input.
            NodeNotFoundError: the input links to a node that does not exist.
        """
        inputs = self._prompt.get_node(node_id).get("inputs", {})
        for name in names:
            if name not in inputs:
                raise NodeInputError(f"Node {node_id} asked for the input {name!r}, which it does not have")
            value = inputs[name]
            if is_link(value):
                self.wait(node_id, value[0], name)
        return bool(self._sources[node_id])

    def wait(self, node_id: str, source: str, name: str = "") -> None:
        """Let a pending node wait for another one, which becomes pending too unless its result is there."""
        if self._wait_for(node_id, name, source):
            self.add(source)

    def take(self) -> str | None:
        """The node to process next; None if nothing is ready. It stays pending until `complete`."""
        while self._heap:
            rank, _, node_id = heapq.heappop(self._heap)
            if rank != self._rank.get(node_id) or node_id in self._in_hand or not self._is_ready(node_id):
                continue  # an older entry: its node has left, has run, or has moved up since
            self._in_hand.add(node_id)
            return node_id
        return None

    def put_back(self, node_id: str) -> None:
        """The node in hand is not finished: it runs again when what it waits for is there."""
        self._in_hand.discard(node_id)
        if self._is_ready(node_id):
            self._push(node_id)

    def set_aside(self, node_id: str) -> Callable[[], None]:
        """The node in hand waits for something outside of the graph. Returns what ends the waiting."""
        self._in_hand.discard(node_id)
        self._outside[node_id] = self._outside.get(node_id, 0) + 1

        def resume() -> None:
            left = self._outside.pop(node_id, 0) - 1
            if left > 0:
                self._outside[node_id] = left
            elif self._is_ready(node_id):
                self._push(node_id)

        return resume

    def complete(self, node_id: str) -> None:
        """The node is finished: it is no longer pending and nobody waits for it."""
        self._in_hand.discard(node_id)
        self._order.pop(node_id, None)
        self._rank.pop(node_id, None)
        self._output.discard(node_id)
        self._sources.pop(node_id, None)
        for consumer in self._consumers.pop(node_id, ()):
            sources = self._sources.get(consumer)
            if sources is not None:
                sources.discard(node_id)
                if not sources and self._is_ready(consumer):
                    self._push(consumer)

    def cycle(self) -> DependencyCycleError:
        """Nothing is ready although nodes are pending: the cycle that must exist, as an error to raise."""
        current = next(iter(self._order))
        seen: dict[str, int] = {}
        path: list[str] = []
        while current not in seen:
            seen[current] = len(path)
            path.append(current)
            current = next(iter(self._sources[current]))
        return DependencyCycleError(path[seen[current] :])

    def _enter(self, node_id: str) -> None:
        self._order[node_id] = next(self._counter)
        self._sources[node_id] = set()
        rank = _ORDINARY
        if self._is_output(node_id):
            self._output.add(node_id)
            rank = _URGENT
        elif self._is_async(node_id):
            rank = _URGENT
        self._rank[node_id] = rank
        # Whoever waits for this node was pending before it and has already said so: pass its standing on.
        for consumer in self._consumers.get(node_id, ()):
            self._inherit(node_id, consumer)

    def _wait_for(self, node_id: str, name: str, source: str) -> bool:
        """Record that a node needs a source. Returns whether it really has to wait."""
        if not self._prompt.has_node(source):
            message = f"Input {name!r} of node {node_id} is linked to node {source}, which is not in the prompt"
            raise NodeNotFoundError(message, node_id)
        if source not in self._order and self._has_result(source):
            return False
        sources = self._sources[node_id]
        if source not in sources:
            sources.add(source)
            self._consumers.setdefault(source, []).append(node_id)
            if source in self._order:
                self._inherit(source, node_id)
        return True

    def _inherit(self, source: str, consumer: str) -> None:
        """Move a node up because of whom it feeds. Ranks only improve while a node is pending."""
        if consumer in self._output:
            self._improve(source, _FEEDS_OUTPUT)
        elif self._feeds_output(consumer):
            self._improve(source, _FEEDS_FEEDER)

    def _feeds_output(self, node_id: str) -> bool:
        if self._rank[node_id] == _FEEDS_OUTPUT:
            return True
        # A coroutine node ranks first anyway, which hides whether it feeds an output node.
        return self._rank[node_id] == _URGENT and any(c in self._output for c in self._consumers.get(node_id, ()))

    def _improve(self, node_id: str, rank: int) -> None:
        if rank < self._rank[node_id]:
            self._rank[node_id] = rank
            if self._is_ready(node_id) and node_id not in self._in_hand:
                self._push(node_id)
        elif self._rank[node_id] != _URGENT or rank != _FEEDS_OUTPUT:
            return
        if rank == _FEEDS_OUTPUT:
            for source in self._sources.get(node_id, ()):
                if source in self._rank:
                    self._improve_feeder(source)

    def _improve_feeder(self, node_id: str) -> None:
        if self._rank[node_id] > _FEEDS_FEEDER:
            self._rank[node_id] = _FEEDS_FEEDER
            if self._is_ready(node_id) and node_id not in self._in_hand:
                self._push(node_id)

    def _is_ready(self, node_id: str) -> bool:
        return node_id in self._order and not self._sources[node_id] and node_id not in self._outside

    def _push(self, node_id: str) -> None:
        heapq.heappush(self._heap, (self._rank[node_id], self._order[node_id], node_id))
