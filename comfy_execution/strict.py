"""`--strict-cache`: nodes work on copies of the tensors they are handed, and those that change them are named.

A result is handed to every node that is linked to it, and kept for the next prompt. A node that changes such a
tensor in place changes it for all of them: what others see then depends on the order of execution, and on what was
in the cache. Without the flag that is what happens, as in the reference; with it, what a node changes is its own copy,
so results in the cache stay what they were, and the node is reported.

A change is found by the tensor's version counter, which every operation of torch that writes counts up, and, for
tensors on the CPU, by comparing the bytes, as NumPy and others write to them unseen. Version counters need
`torch.no_grad` instead of `torch.inference_mode`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

Values = list | tuple


class InputGuard:
    """Copies of some of a node's arguments.

    data: argument -> list of values, as the node gets them; `linked` names those that are results of other nodes.
        Tensors are found in lists, tuples and dicts, however deep; other objects are shared as they are.
    """

    def __init__(self, data: dict[str, Values], linked: Iterable[str]) -> None:
        self._torch: Any = sys.modules.get("torch")
        # Tensor's identity -> itself, its copy, the copy's version, and the arguments it was found in.
        self._copies: dict[int, tuple[Any, Any, int, list[str]]] = {}
        self.data = dict(data)
        if self._torch is None:
            return
        for name in linked:
            if name in data:
                self.data[name] = self._copy(data[name], name, {})

    def changed(self) -> list[str]:
        """The arguments with a tensor that has been changed since, in order."""
        names: dict[str, None] = {}
        for original, copy, version, found_in in self._copies.values():
            if _version(copy) != version or self._differ(original, copy):
                names.update(dict.fromkeys(found_in))
        return [name for name in self.data if name in names]

    def _copy(self, value: Any, name: str, seen: dict[int, Any]) -> Any:
        if isinstance(value, self._torch.Tensor):
            return self._copy_tensor(value, name)
        kind = type(value)
        if kind not in (list, tuple, dict):
            return value
        if id(value) in seen:  # the same list twice, or a list that contains itself
            return seen[id(value)]
        if kind is dict:
            made: Any = {}
            seen[id(value)] = made
            made.update((key, self._copy(inner, name, seen)) for key, inner in value.items())
            return made
        if kind is list:
            made = []
            seen[id(value)] = made
            made.extend(self._copy(inner, name, seen) for inner in value)
            return made
        seen[id(value)] = made = tuple(self._copy(inner, name, seen) for inner in value)
        return made

    def _copy_tensor(self, tensor: Any, name: str) -> Any:
        known = self._copies.get(id(tensor))
        if known is not None:
            if name not in known[3]:
                known[3].append(name)
            return known[1]
        copy = tensor.detach().clone()
        self._copies[id(tensor)] = (tensor, copy, _version(copy), [name])
        return copy

    def _differ(self, original: Any, copy: Any) -> bool:
        if copy.device.type != "cpu" or copy.layout is not self._torch.strided:
            return False  # nothing writes to it past torch
        if original.shape != copy.shape or original.dtype != copy.dtype:
            return True
        # As bytes, since a NaN is not equal to itself.
        first, second = (t.contiguous().reshape(-1).view(self._torch.uint8) for t in (original, copy))
        return not self._torch.equal(first, second)


def _version(tensor: Any) -> int:
    try:
        return tensor._version
    except RuntimeError:  # a tensor made in inference mode, by a node that switches it on, has no counter
        return -1
