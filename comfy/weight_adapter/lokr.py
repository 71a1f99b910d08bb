"""LoKr: a Kronecker product, each factor whole or of low rank (Yeh et al. 2023, LyCORIS)."""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.weight_adapter.base import AdapterParts, WeightAdapter, rebuilt_kernel


class LoKrAdapter(WeightAdapter):
    """Change = w1 (x) w2, times alpha / rank where a factor is of low rank (else alpha is not used)."""

    name = "lokr"
    takes = ("lokr_w1", "lokr_w2", "lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b", "lokr_t2")

    @classmethod
    def load(cls, parts: AdapterParts) -> WeightAdapter | None:
        complete = all(
            f"lokr_w{n}" in parts or (f"lokr_w{n}_a" in parts and f"lokr_w{n}_b" in parts) for n in ("1", "2")
        )
        return super().load(parts) if complete else None

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        first, second = self._factor("1", weight), self._factor("2", weight)
        if second.ndim == 4:
            first = first[:, :, None, None]
        change = torch.kron(first.contiguous(), second.contiguous()).reshape(weight.shape)
        rank = next((self.parts[f"lokr_w{n}_b"].shape[0] for n in ("2", "1") if f"lokr_w{n}" not in self.parts), None)
        return change if rank is None or self.alpha is None else change * (self.alpha / rank)

    def _factor(self, number: str, weight: Tensor) -> Tensor:
        if f"lokr_w{number}" in self.parts:
            return self._part(f"lokr_w{number}", weight)
        a, b = self._part(f"lokr_w{number}_a", weight), self._part(f"lokr_w{number}_b", weight)
        if number == "2" and "lokr_t2" in self.parts:
            return rebuilt_kernel(self._part("lokr_t2", weight), a, b)
        return a @ b
