"""BOFT: rotations of blocks of rows, arranged as butterflies (Liu et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.weight_adapter.base import AdapterParts, WeightAdapter
from comfy.weight_adapter.oft import rotations


class BOFTAdapter(WeightAdapter):
    """oft_blocks [stages, blocks, n, n] with blocks * n = rows. Stage i rotates groups of rows that lie 2^i * n/2 rows
    apart. alpha limits the norm as in OFT; the strength interpolates each rotation and scales the change."""

    name = "boft"
    needs = ("oft_blocks",)
    takes = ("rescale",)

    @classmethod
    def load(cls, parts: AdapterParts) -> WeightAdapter | None:
        if "oft_blocks" not in parts or parts["oft_blocks"].ndim != 4:
            return None
        return super().load(parts)

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        blocks = self._part("oft_blocks", weight)
        stages, count, size = blocks.shape[:3]
        if count * size != weight.shape[0]:
            raise ValueError(f"{count} rotations of {size} rows for {weight.shape[0]} rows")
        turns = rotations(blocks, self.alpha or 0.0)
        identity = torch.eye(size, device=turns.device, dtype=turns.dtype)
        turns = identity + (turns - identity) * strength
        rows = weight.flatten(1)
        for stage in range(stages):
            rows = _butterfly(rows, turns[stage], distance=2**stage * (size // 2))
        if "rescale" in self.parts:
            rows = rows * self._part("rescale", weight).reshape(-1, 1)
        return rows.reshape(weight.shape) - weight


def _butterfly(rows: Tensor, turns: Tensor, distance: int) -> Tensor:
    """One stage: rows are taken in pairs `distance` apart, brought together, rotated in blocks, and put back."""
    size = turns.shape[-1]
    paired = rows.unflatten(0, (-1, 2, distance)).transpose(1, 2).flatten(0, 2)
    turned = torch.bmm(turns, paired.unflatten(0, (-1, size))).flatten(0, 1)
    return turned.unflatten(0, (-1, distance, 2)).transpose(1, 2).flatten(0, 2)
