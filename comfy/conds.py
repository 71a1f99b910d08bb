"""Values that conditioning brings into a model call, and how several of them are batched.

Each is made per conditioning entry by the model's `extra_conds`, fitted to the run by `process_cond`, and
joined with those of other entries by `concat` when all agree that it `can_concat`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from comfy.state_dicts import repeat_to_batch_size

# A context may be repeated to match a longer one, but not beyond this: the extra tokens cost attention.
MAX_CONTEXT_REPEAT = 4


class CONDRegular:
    """A tensor with a batch dimension."""

    def __init__(self, cond: Tensor):
        self.cond = cond

    def _copy_with(self, cond: Any) -> CONDRegular:
        return self.__class__(cond)

    def process_cond(self, batch_size: int, **kwargs: Any) -> CONDRegular:
        """Repeated or cut to the batch of the run."""
        return self._copy_with(repeat_to_batch_size(self.cond, batch_size))

    def to(self, device: Any) -> CONDRegular:
        """On a device; itself where it is there already."""
        moved = self.cond.to(device)
        return self if moved is self.cond else self._copy_with(moved)

    def can_concat(self, other: CONDRegular) -> bool:
        return self.cond.shape == other.cond.shape and self.cond.device == other.cond.device

    def concat(self, others: list[CONDRegular]) -> Any:
        """The joint batch of this and the others."""
        return torch.cat([self.cond, *(o.cond for o in others)])

    def size(self) -> list[int]:
        """Shape, for estimating memory."""
        return list(self.cond.shape)


class CONDNoiseShape(CONDRegular):
    """A tensor laid out like the latent: cropped along with it when an entry covers an area."""

    def process_cond(self, batch_size: int, area: tuple[int, ...] | None = None, **kwargs: Any) -> CONDRegular:
        """area: sizes, then offsets, one of each per spatial dimension."""
        data = self.cond
        if area is not None:
            dims = len(area) // 2
            for i in range(dims):
                data = data.narrow(i + 2, area[i + dims], area[i])
        return self._copy_with(repeat_to_batch_size(data, batch_size))


class CONDCrossAttn(CONDRegular):
    """A context [batch, tokens, width]; contexts of different length are repeated to a common one."""

    def can_concat(self, other: CONDRegular) -> bool:
        mine, others = self.cond.shape, other.cond.shape
        if self.cond.device != other.cond.device:
            return False
        if mine == others:
            return True
        if len(mine) != 3 or len(others) != 3 or mine[0] != others[0] or mine[2] != others[2]:
            return False
        return math.lcm(mine[1], others[1]) // min(mine[1], others[1]) <= MAX_CONTEXT_REPEAT

    def concat(self, others: list[CONDRegular]) -> Tensor:
        conds = [self.cond, *(o.cond for o in others)]
        if self.cond.ndim != 3:
            return torch.cat(conds)
        length = math.lcm(*(c.shape[1] for c in conds))
        # Attention over a repeated context gives the same result as over the context itself.
        return torch.cat([c.repeat(1, length // c.shape[1], 1) if c.shape[1] < length else c for c in conds])


class CONDConstant(CONDRegular):
    """Any value that is the same for the whole batch."""

    def process_cond(self, batch_size: int, **kwargs: Any) -> CONDRegular:
        return self._copy_with(self.cond)

    def to(self, device: Any) -> CONDRegular:
        """Itself: on the host it can be compared without waiting for a device."""
        return self

    def can_concat(self, other: CONDRegular) -> bool:
        if self.cond is other.cond:
            return True
        if isinstance(self.cond, Tensor) or isinstance(other.cond, Tensor):
            return (
                isinstance(self.cond, Tensor)
                and isinstance(other.cond, Tensor)
                and self.cond.shape == other.cond.shape
                and torch.equal(self.cond, other.cond)
            )
        return bool(self.cond == other.cond)

    def concat(self, others: list[CONDRegular]) -> Any:
        return self.cond

    def size(self) -> list[int]:
        return [1]


class CONDList(CONDRegular):
    """A list of tensors, each with a batch dimension."""

    def process_cond(self, batch_size: int, **kwargs: Any) -> CONDRegular:
        return self._copy_with([repeat_to_batch_size(c, batch_size) for c in self.cond])

    def to(self, device: Any) -> CONDRegular:
        """On a device."""
        return self._copy_with([c.to(device) for c in self.cond])

    def can_concat(self, other: CONDRegular) -> bool:
        return len(self.cond) == len(other.cond) and all(
            mine.shape == theirs.shape for mine, theirs in zip(self.cond, other.cond)
        )

    def concat(self, others: list[CONDRegular]) -> list[Tensor]:
        return [torch.cat([c, *(o.cond[i] for o in others)]) for i, c in enumerate(self.cond)]

    def size(self) -> list[int]:
        return [1, 1, sum(math.prod(c.shape) for c in self.cond)]
