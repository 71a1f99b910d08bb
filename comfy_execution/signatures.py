"""Cache keys of nodes (spec execution.md, 8.1).

The key of a node is a SHA-256 digest of its class, its fingerprint, its constants and the digests of the nodes it is
linked to, so it covers all ancestors while staying 32 bytes long. Keys are computed bottom-up, once per node and run.
"""

from __future__ import annotations

import marshal
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from itertools import count
from typing import Any

from comfy_execution.graph import DynamicPrompt
from comfy_execution.links import is_link

_MAX_DEPTH = 200  # nesting of a constant; beyond it the constant never matches
_fresh = count()  # numbers for values that equal nothing, not even themselves in a later prompt
_object_tokens: dict[int, tuple[weakref.ref, int]] = {}


class _Freezer:
    """Turns constants into nested tuples of plain values, which `_bytes_of` can tell apart."""

    __slots__ = ("stable",)

    def __init__(self) -> None:
        self.stable = True  # whether they mean the same in another process

    def freeze(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None:
            return value
        if kind is float:
            return value if value == value else self._unique()
        if depth > _MAX_DEPTH:
            return self._unique()
        if isinstance(value, list | tuple):
            return ("list", *(self.freeze(item, depth + 1) for item in value))
        if isinstance(value, dict):
            return self._freeze_dict(value, depth)
        if isinstance(value, Enum):
            return ("enum", kind.__qualname__, value.name)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes):
            return ("bytes", bytes(value))
        return self._identity(value)

    def _freeze_dict(self, value: dict, depth: int) -> Any:
        if not all(isinstance(key, str) for key in value):
            return self._unique()
        return ("dict", *((str(key), self.freeze(value[key], depth + 1)) for key in sorted(value)))

    def _unique(self) -> tuple:
        self.stable = False
        return ("unique", next(_fresh))

    def _identity(self, value: Any) -> tuple:
        """Objects (tensors, models) are equal to themselves only, for as long as they live."""
        self.stable = False
        known = _object_tokens.get(id(value))
        if known is not None and known[0]() is value:
            return ("object", known[1])
        key = id(value)
        token = next(_fresh)

        def forget(reference: weakref.ref) -> None:
            kept = _object_tokens.get(key)
            if kept is not None and kept[0] is reference:
                del _object_tokens[key]

        try:
            _object_tokens[key] = (weakref.ref(value, forget), token)
        except TypeError:
            return ("unique", token)
        return ("object", token)


def _bytes_of(key: tuple) -> bytes:
    """Nested tuples of plain values as bytes: equal only if the values and their types are."""
    try:
        return marshal.dumps(key, 0)  # the version that does not look at how often an object is referred to
    except ValueError:  # a name that is an instance of a subclass of str
        return repr(key).encode("utf-8", "surrogatepass")


class Signatures:
    """The cache keys of the nodes of one run.

    Args:
        prompt: the nodes; an `is_changed` entry of a node is its list of fingerprints.
        own_id: whether the id of a node of a class is part of its key.
    """

    def __init__(self, prompt: DynamicPrompt, own_id: Callable[[str], bool]) -> None:
        self._prompt = prompt
        self._own_id = lru_cache(maxsize=None)(own_id)
        self._digests: dict[str, bytes] = {}
        self._unstable: set[str] = set()
        self.get = self._digests.get

    def __getitem__(self, node_id: str) -> bytes:
        return self._digests[node_id]

    def keys(self) -> Iterable[bytes]:
        """All keys there are so far, in the order in which they were computed."""
        return self._digests.values()

    def is_stable(self, node_id: str) -> bool:
        """Whether the key would come out the same in another process."""
        return node_id not in self._unstable

    def compute(self, node_ids: Iterable[str]) -> None:
        """Compute the keys of these nodes and of everything above them."""
        prompt, digests = self._prompt, self._digests
        for root in node_ids:
            if root in digests:
                continue
            stack = [root]
            open_nodes: set[str] = set()
            while stack:
                node_id = stack[-1]
                if node_id not in digests:
                    missing = self._digest(node_id, prompt.get_node(node_id), open_nodes)
                    if missing:
                        open_nodes.add(node_id)
                        stack.extend(missing)
                        continue
                stack.pop()

    def _digest(self, node_id: str, node: dict[str, Any], open_nodes: set[str]) -> list[str]:
        """Compute the key of a node, unless it is linked to nodes whose key has to be known first: then return them.

        Args:
            open_nodes: nodes that wait for their sources; a link back to one of them closes a cycle.
        """
        digests = self._digests
        stable = True
        missing: list[str] = []
        freezer = None
        parts: list[Any] = []
        inputs = node.get("inputs")
        for name in sorted(inputs) if isinstance(inputs, dict) else ():
            value = inputs[name]
            kind = type(value)
            if kind is str or kind is int:
                parts += (name, value)
            elif kind is list and is_link(value):
                source, slot = value
                digest = digests.get(source)
                if digest is not None:
                    parts += (name, ("link", digest, slot))
                    if source in self._unstable:
                        stable = False
                elif node_id not in open_nodes and source not in open_nodes and self._prompt.has_node(source):
                    missing.append(source)
                else:  # a link to nowhere, or back into a cycle, has no digest: it never matches
                    parts += (name, ("unique", next(_fresh)))
                    stable = False
            else:
                freezer = freezer or _Freezer()
                parts += (name, freezer.freeze(value))
        if missing:
            return missing
        class_type = node.get("class_type")
        changed = node.get("is_changed", False)
        if changed is not False:
            freezer = freezer or _Freezer()
            changed = freezer.freeze(changed)
        key = (class_type, changed, node_id if self._own_id(class_type) else None, parts)
        digests[node_id] = sha256(_bytes_of(key)).digest()
        if not stable or (freezer is not None and not freezer.stable):
            self._unstable.add(node_id)
        return missing
