"""OFT: blocks of rows are rotated (Qiu et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.weight_adapter.base import AdapterParts, WeightAdapter


def rotations(blocks: Tensor, limit: float) -> Tensor:
    """Orthogonal matrices [..., n, n] from free ones by the Cayley transform (I + Q)(I - Q)^-1 with Q = B - B^T;
    `limit` is the largest norm of all Q together, 0 for none."""
    q = blocks - blocks.transpose(-1, -2)
    if limit > 0:
        norm = torch.linalg.vector_norm(q) + 1e-8
        q = q * (limit / norm).clamp(max=1.0)
    identity = torch.eye(q.shape[-1], device=q.device, dtype=q.dtype)
    return (identity + q) @ torch.linalg.inv(identity - q)


class OFTAdapter(WeightAdapter):
    """oft_blocks [blocks, n, n] with blocks * n = rows; `rescale` multiplies rows afterwards. alpha is the limit of
    `rotations`. The strength enters twice: it interpolates the rotation and scales the change, as published files are
    used elsewhere."""

    name = "oft"
    needs = ("oft_blocks",)
    takes = ("rescale",)

    @classmethod
    def load(cls, parts: AdapterParts) -> WeightAdapter | None:
        if "oft_blocks" not in parts or parts["oft_blocks"].ndim != 3:
            return None
        return super().load(parts)

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        blocks = self._part("oft_blocks", weight)
        count, size = blocks.shape[:2]
        if count * size != weight.shape[0]:
            raise ValueError(f"{count} rotations of {size} rows for {weight.shape[0]} rows")
        turn = rotations(blocks, self.alpha or 0.0)
        # 1 at strength 0
        turn = (turn - torch.eye(size, device=turn.device, dtype=turn.dtype)) * strength
        rows = weight.reshape(count, size, -1)
        # Published files hold the rotation to be applied from the other side.
        change = torch.bmm(turn.transpose(1, 2), rows).reshape(weight.shape)
        if "rescale" in self.parts:
            rescale = self._part("rescale", weight).reshape(-1, *[1] * (weight.ndim - 1))
            change = (weight + change) * rescale - weight
        return change
