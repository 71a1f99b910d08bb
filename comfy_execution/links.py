"""Links and constants: the two kinds of value an input can have (spec execution.md, section 1)."""

from __future__ import annotations

from typing import Any


class ConstantList(list):
    """A list that was sent wrapped in `{"__value__": [...]}`: a constant whatever is in it.

    Without the mark, an unwrapped `["x", 1]` would read as a link to node "x". Encodes as a plain JSON list.
    """

    __slots__ = ()


def is_link(obj: object) -> bool:
    """Whether `obj` is a link `[source node id, slot]`."""
    if type(obj) is not list and (not isinstance(obj, list) or isinstance(obj, ConstantList)):
        return False
    return len(obj) == 2 and isinstance(obj[0], str) and type(obj[1]) in (int, float)


def links_of(node: dict[str, Any]) -> list[tuple[str, list]]:
    """The (input name, link) pairs of a prompt node, in the order in which they were sent."""
    inputs = node.get("inputs")
    if not isinstance(inputs, dict):
        return []
    return [item for item in inputs.items() if isinstance(item[1], list) and is_link(item[1])]
