"""LoRA (Hu et al. 2021) for linear layers and convolutions (LoCon, also with a Tucker core)."""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.weight_adapter.base import WeightAdapter


class LoRAAdapter(WeightAdapter):
    """Change = up . down * alpha / rank; alpha missing: no scale.

    up [out, rank, ...], down [rank, in, ...], mid [rank, rank, h, w] between them for convolutions. `reshape_weight` is
    the shape that the weight is grown to first.
    """

    name = "lora"
    needs = ("up", "down")
    takes = ("mid", "reshape_weight")

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        up, down = self._part("up", weight), self._part("down", weight)
        rank = down.shape[0]
        if "mid" in self.parts:
            mid = self._part("mid", weight)
            change = torch.einsum("or,rshw,si->oihw", up.flatten(1), mid, down.flatten(1))
        else:
            change = up.flatten(1) @ down.flatten(1)
        change = change.reshape(weight.shape)
        return change if self.alpha is None else change * (self.alpha / rank)

    def _grown(self, weight: Tensor) -> Tensor:
        if "reshape_weight" not in self.parts:
            return weight
        shape = tuple(int(n) for n in self.parts["reshape_weight"].tolist())
        if shape == tuple(weight.shape):
            return weight
        if len(shape) != weight.ndim or any(new < old for new, old in zip(shape, weight.shape)):
            raise ValueError(f"a weight cannot be grown to {shape}")
        grown = weight.new_zeros(shape)
        grown[tuple(slice(0, n) for n in weight.shape)] = weight
        return grown
