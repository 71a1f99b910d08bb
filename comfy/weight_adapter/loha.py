"""LoHa: the elementwise product of two low-rank matrices (Hyeon-Woo et al. 2021, FedPara)."""

from __future__ import annotations

from torch import Tensor

from comfy.weight_adapter.base import WeightAdapter, rebuilt_kernel


class LoHaAdapter(WeightAdapter):
    """Change = (w1_a . w1_b) * (w2_a . w2_b) * alpha / rank; with cores t1 and t2 for convolutions."""

    name = "loha"
    needs = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    takes = ("hada_t1", "hada_t2")

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        change = (self._factor("1", weight) * self._factor("2", weight)).reshape(weight.shape)
        rank = self.parts["hada_w1_b"].shape[0]
        return change if self.alpha is None else change * (self.alpha / rank)

    def _factor(self, number: str, weight: Tensor) -> Tensor:
        a, b = self._part(f"hada_w{number}_a", weight), self._part(f"hada_w{number}_b", weight)
        if f"hada_t{number}" not in self.parts:
            return a @ b
        return rebuilt_kernel(self._part(f"hada_t{number}", weight), a, b)
