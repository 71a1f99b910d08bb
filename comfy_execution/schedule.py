"""Which node next (spec execution.md, section 4): waiting nodes, what they wait for, and who goes first.

Taking the next node is O(log n) and nothing recurses, so chains of any length and graphs of any width will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from comfy_execution.graph import DependencyCycleError, DynamicPrompt, NodeInputError, NodeNotFoundError
from comfy_execution.links import is_link, links_of

# Ranks of ready nodes, best first.
_URGENT, _FEEDS_OUTPUT, _FEEDS_FEEDER, _ORDINARY = range(4)
_RANK_SHIFT = 48  # an entry of the heap is one number: the rank above these bits, the order of arrival in them
_ORDER_BITS = (1 << _RANK_SHIFT) - 1


class _Pending:
    """A node that has not finished, and who waits for whom."""

    __slots__ = ("consumers", "id", "in_hand", "is_output", "order", "outside", "rank", "sources")

    def __init__(self, node_id: str) -> None:
        self.id = node_id
        self.order = -1  # when it became pending; -1: it has only been named by a node that needs it
        self.rank = _ORDINARY
        self.is_output = False
        self.in_hand = False  # taken and not yet completed or put back
        self.outside = 0  # how many times it has been set aside, waiting for coroutines
        self.sources: set[_Pending] | frozenset[_Pending] = frozenset()
        self.consumers: list[_Pending] | tuple[()] = ()

    def is_ready(self) -> bool:
        return not self.sources and not self.outside and not self.in_hand

    def feeds_output(self) -> bool:
        if self.rank == _FEEDS_OUTPUT:
            return True
        # A coroutine node ranks first anyway, which hides whether it feeds an output node.
        return self.rank == _URGENT and any(consumer.is_output for consumer in self.consumers)


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
        self._nodes: dict[str, _Pending] = {}
        self._arrived: list[_Pending | None] = []  # by order of arrival; None: finished
        self._heap: list[int] = []
        self._outside = 0  # nodes that have been set aside

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node_id: object) -> bool:
        """Whether a node is pending."""
        return node_id in self._nodes

    @property
    def waiting_outside(self) -> bool:
        """Whether any node has been set aside until a coroutine ends."""
        return self._outside > 0

    def add(self, node_id: str) -> None:
        """Make a node pending, and then, depth first, the sources it still needs.

        Raises:
            NodeNotFoundError: a link (followed from here) names a node that does not exist.
        """
        stack = [node_id]
        while stack:
            current = stack.pop()
            node = self._nodes.get(current)
            if node is None:
                node = self._nodes[current] = _Pending(current)
            elif node.order >= 0:
                continue
            self._enter(node)
            if self._has_result(current):
                self._push(node)  # to be reported, which needs none of its sources
                continue
            lazy = self._lazy_inputs(current)
            for name, link in links_of(self._prompt.get_node(current)):
                if name not in lazy and self._wait_for(node, name, link[0]):
                    stack.append(link[0])
            if not node.sources:
                self._push(node)

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
        return bool(self._nodes[node_id].sources)

    def wait(self, node_id: str, source: str, name: str = "") -> None:
        """Let a pending node wait for another one, which becomes pending too unless its result is there."""
        if self._wait_for(self._nodes[node_id], name, source):
            self.add(source)

    def take(self) -> str | None:
        """The node to process next; None if nothing is ready. It stays pending until `complete`."""
        heap, arrived = self._heap, self._arrived
        while heap:
            entry = heappop(heap)
            node = arrived[entry & _ORDER_BITS]
            if node is None or entry >> _RANK_SHIFT != node.rank or not node.is_ready():
                continue  # an older entry: its node has finished, has been taken, waits, or has moved up since
            node.in_hand = True
            return node.id
        return None

    def put_back(self, node_id: str) -> None:
        """The node in hand is not finished: it runs again when what it waits for is there."""
        node = self._nodes[node_id]
        node.in_hand = False
        if node.is_ready():
            self._push(node)

    def set_aside(self, node_id: str) -> Callable[[], None]:
        """The node in hand waits for something outside of the graph. Returns what ends the waiting."""
        node = self._nodes[node_id]
        node.in_hand = False
        node.outside += 1
        self._outside += 1

        def resume() -> None:
            node.outside -= 1
            self._outside -= 1
            if node.is_ready():
                self._push(node)

        return resume

    def complete(self, node_id: str) -> None:
        """The node is finished: it is no longer pending and nobody waits for it."""
        node = self._nodes.pop(node_id)
        self._arrived[node.order] = None
        for consumer in node.consumers:
            consumer.sources.discard(node)
            if consumer.is_ready():
                self._push(consumer)

    def cycle(self) -> DependencyCycleError:
        """Nothing is ready although nodes are pending: the cycle that must exist, as an error to raise."""
        current = next(iter(self._nodes.values()))
        seen: dict[_Pending, int] = {}
        path: list[str] = []
        while current not in seen:
            seen[current] = len(path)
            path.append(current.id)
            current = next(iter(current.sources))
        return DependencyCycleError(path[seen[current] :])

    def _enter(self, node: _Pending) -> None:
        node.order = len(self._arrived)
        self._arrived.append(node)
        if self._is_output(node.id):
            node.is_output = True
            node.rank = _URGENT
        elif self._is_async(node.id):
            node.rank = _URGENT
        # Whoever waits for this node was pending before it and has already said so: pass its standing on.
        node.in_hand = True  # what it waits for is not known yet
        for consumer in node.consumers:
            self._inherit(node, consumer)
        node.in_hand = False

    def _wait_for(self, node: _Pending, name: str, source_id: str) -> bool:
        """Record that a node needs a source. Returns whether it really has to wait."""
        source = self._nodes.get(source_id)
        if source is None:
            if not self._prompt.has_node(source_id):
                what = f"Input {name!r} of" if name else "The graph returned by"
                message = f"{what} node {node.id} is linked to node {source_id}, which is not in the prompt"
                raise NodeNotFoundError(message, node.id)
            if self._has_result(source_id):
                return False
            source = self._nodes[source_id] = _Pending(source_id)
        if source not in node.sources:
            if node.sources:
                node.sources.add(source)
            else:
                node.sources = {source}
            if source.consumers:
                source.consumers.append(node)
            else:
                source.consumers = [node]
            if source.order >= 0:
                self._inherit(source, node)
        return True

    def _inherit(self, source: _Pending, consumer: _Pending) -> None:
        """Move a node up because of whom it feeds. Ranks only improve while a node is pending."""
        if consumer.is_output:
            self._improve(source, _FEEDS_OUTPUT)
        elif consumer.feeds_output():
            self._improve(source, _FEEDS_FEEDER)

    def _improve(self, node: _Pending, rank: int) -> None:
        if not self._move_up(node, rank) and (node.rank != _URGENT or rank != _FEEDS_OUTPUT):
            return
        if rank == _FEEDS_OUTPUT:
            for source in node.sources:
                if source.order >= 0:
                    self._move_up(source, _FEEDS_FEEDER)

    def _move_up(self, node: _Pending, rank: int) -> bool:
        """Give a node a better rank. Returns whether it has become better."""
        if rank >= node.rank:
            return False
        node.rank = rank
        if node.is_ready():
            self._push(node)
        return True

    def _push(self, node: _Pending) -> None:
        heappush(self._heap, node.rank << _RANK_SHIFT | node.order)
