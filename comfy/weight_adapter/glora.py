"""GLoRA: a change that also depends on the weight (Chavan et al. 2023)."""

from __future__ import annotations

from torch import Tensor

from comfy.weight_adapter.base import WeightAdapter


class GLoRAAdapter(WeightAdapter):
    """Change = (weight . A + B) * alpha / rank with A and B of low rank.

    Files multiply either in the order of layers, A = a2 . a1 and B = b2 . b1 with a1, b1 [rank, in], or A = a1 . a2
    with a1 [in, rank].
    """

    name = "glora"
    needs = ("a1", "a2", "b1", "b2")

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        a1, a2, b1, b2 = (self._part(name, weight).flatten(1) for name in self.needs)
        rank = b1.shape[0]
        inputs = a2 @ a1 if a1.shape[0] == rank and a2.shape[1] == rank else a1 @ a2
        flat = weight.flatten(1)
        kernel = flat.shape[1] // inputs.shape[0]
        # A convolution's input channels are mixed, the same way at each place of the kernel.
        mixed = (flat.unflatten(1, (-1, kernel)).movedim(1, -1) @ inputs).movedim(-1, 1).flatten(1)
        change = (mixed + b2 @ b1).reshape(weight.shape)
        return change if self.alpha is None else change * (self.alpha / rank)
