"""Counting what makes a host wait for its device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# `item`, `tolist` (seen by what it resolves first), `bool(tensor)` and indexing with a mask read values; on a GPU each
# waits until all is computed.
_READING = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "resolve_neg"}


def _reads(function: Any, args: Any) -> bool:
    name = function.overloadpacket.__name__
    if name in ("index", "index_put", "index_put_"):
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return name in _READING


class HostReads(TorchDispatchMode):
    """Inside the block, `count` is how often values of tensors were read by the host. names: which operations did."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @property
    def count(self) -> int:
        """How often."""
        return len(self.names)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _reads(function, args):
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def reads_of(run: Any) -> list[str]:
    """The operations of a call that read values."""
    with HostReads() as reads:
        run()
    return reads.names
