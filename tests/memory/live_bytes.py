"""Counting the bytes that tensors take while something runs, on any device, the meta device included."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Inside the block: what operations put out and is still referred to. Tensors that were there before do not
    count; what an operation takes inside of itself does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live = 0
        self._references: Counter[int] = Counter()  # tensors by their storage; views share one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not self._references[key]:
            self._live += size
            self.peak = max(self.peak, self._live)
        self._references[key] += 1
        weakref.finalize(tensor, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._references[key] -= 1
        if not self._references[key]:
            self._live -= size
