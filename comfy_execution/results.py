"""The results of one run: what this run made or found, held for as long as it may be needed.

Between runs results live in a `caching.ResultCache`; a run holds on to what it uses, so that dropping cached results
while it runs never takes away an input of a node that is still to come.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import Any

from comfy_execution.caching import CacheEntry, ResultCache
from comfy_execution.graph import DynamicPrompt
from comfy_execution.links import links_of
from comfy_execution.signatures import Signatures


class RunResults:
    """Results by node id, backed by the cache.

    Args:
        signatures: the keys; None when the cache keeps nothing.
        forced: nodes of the submitted prompt whose stored results do not count, until this run has made new ones.
    """

    def __init__(
        self,
        prompt: DynamicPrompt,
        cache: ResultCache,
        signatures: Signatures | None,
        forced: Collection[str] = (),
    ) -> None:
        self._prompt = prompt
        self._submitted = prompt.original_prompt
        self._cache = cache
        self._signatures = signatures
        self._forced = forced
        self._made: set[str] = set()  # the nodes that this run has made results of, if any are forced
        self._held: dict[str, CacheEntry] = {}
        self._root = cache.scope()
        self._scopes: dict[str, Any] = {}  # of expanding nodes
        self._consumers: dict[str, list[str]] | None = None  # by node, once memory has been short
        self._consumers_left: dict[str, int] | None = None
        self._also_needed: dict[str, set[str]] = {}
        if not cache.keeps_results:
            self._consumers_left = {}
            self.count_consumers(prompt.original_prompt)

    def get(self, node_id: str) -> CacheEntry | None:
        """A node's result, from this run or from the cache; it stays there until the run no longer needs it."""
        entry = self._held.get(node_id)
        if entry is None:
            entry = self.stored(node_id)
            if entry is not None:
                self._held[node_id] = entry
        return entry

    def stored(self, node_id: str) -> CacheEntry | None:
        """A node's result as the cache has it, without holding on to it."""
        if self._signatures is None:
            return None
        key = self._signatures.get(node_id)
        if key is None or (self._forced and node_id not in self._made and self._is_forced(node_id)):
            return None
        return self._cache.get(self._root if node_id in self._submitted else self._scope_of(node_id), key)

    def submitted(self) -> list[str]:
        """The nodes of the submitted prompt whose result is in the cache, and counts."""
        if self._signatures is None:
            return []
        key_of, get, root = self._signatures.get, self._cache.get, self._root
        stored = [node_id for node_id in self._submitted if get(root, key_of(node_id)) is not None]
        if self._forced:
            stored = [node_id for node_id in stored if node_id not in self._forced]
        return stored

    def put(self, node_id: str, entry: CacheEntry) -> None:
        """A node has finished."""
        self._cache.counts.misses += 1
        self._held[node_id] = entry
        if self._forced:
            self._made.add(node_id)
        if self._signatures is not None:
            self._cache.put(self._scope_of(node_id), self._signatures[node_id], entry)
        elif self._consumers_left is not None:
            self._release(node_id)

    def _is_forced(self, node_id: str) -> bool:
        """Whether the node, or the one that it was expanded from, is forced."""
        while (parent := self._prompt.get_parent_node_id(node_id)) is not None:
            node_id = parent
        return node_id in self._forced

    def forget(self, node_id: str) -> None:
        """Drop a node's result, here and in the cache."""
        self._held.pop(node_id, None)
        if self._signatures is not None:
            self._cache.drop(self._scope_of(node_id), self._signatures[node_id])

    def inner_scope(self, node_id: str) -> Any:
        """Where the cache keeps the results of the nodes that `node_id` expands to."""
        scope = self._scopes.get(node_id)
        if scope is None:
            node = node_id, self._prompt.get_node(node_id)["class_type"]
            scope = self._scopes[node_id] = self._cache.scope(self._scope_of(node_id), node)
        return scope

    def _scope_of(self, node_id: str) -> Any:
        parent = self._prompt.get_parent_node_id(node_id)
        # A parent has expanded before its inner nodes are asked for, so its scope is there: no recursion.
        return self._root if parent is None else self._scopes[parent]

    def keep_only(self, pending: Container[str]) -> None:
        """Memory is short: let go of results that no pending node has itself or is linked to.

        It costs by what is held, not by what is pending: where memory stays short, it is called all the time.
        """
        if self._consumers is None:
            self._consumers = {}
            for node_id in self._prompt.all_node_ids():
                self._note_consumer(node_id, self._sources(node_id))
        consumers = self._consumers
        # One that was found in the cache is pending, too, and its inputs have not been asked for.
        self._held = {
            node_id: entry
            for node_id, entry in self._held.items()
            if node_id in pending or any(consumer in pending for consumer in consumers.get(node_id, ()))
        }

    def release(self) -> None:
        """The run is over: let go of everything."""
        self._held = {}

    def _note_consumer(self, node_id: str, sources: Iterable[str]) -> None:
        for source in sources:
            self._consumers.setdefault(source, []).append(node_id)

    def count_consumers(self, nodes: dict[str, dict]) -> None:
        """Note who will need whom; without a cache, so that results can go when the last of them is done."""
        if self._consumers is not None:
            for node_id in nodes:
                self._note_consumer(node_id, self._sources(node_id))
        if self._consumers_left is not None:
            for node in nodes.values():
                for source in {link[0] for _, link in links_of(node)}:
                    self._consumers_left[source] = self._consumers_left.get(source, 0) + 1

    def also_needs(self, node_id: str, sources: set[str]) -> None:
        """A node that expanded will take its result from these nodes."""
        self._also_needed[node_id] = sources
        if self._consumers is not None:
            self._note_consumer(node_id, sources)
        if self._consumers_left is not None:
            known = {link[0] for _, link in links_of(self._prompt.get_node(node_id))}
            for source in sources - known:
                self._consumers_left[source] = self._consumers_left.get(source, 0) + 1

    def _sources(self, node_id: str) -> set[str]:
        linked = {link[0] for _, link in links_of(self._prompt.get_node(node_id))}
        return linked | self._also_needed.get(node_id, set())

    def _release(self, node_id: str) -> None:
        for source in self._sources(node_id):
            left = self._consumers_left.get(source, 0) - 1
            self._consumers_left[source] = left
            if left <= 0:
                self._held.pop(source, None)
