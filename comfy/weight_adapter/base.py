"""What all adapters have in common: parts, and how their change is added to a weight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from comfy.devices import is_oom

log = logging.getLogger(__name__)

# What computing with parts of other shapes ends in.
MISFITS = (RuntimeError, ValueError, LookupError, ArithmeticError)

AdapterParts = Mapping[str, Tensor]


class WeightAdapter:
    """A change of one weight, made of the named tensors in `parts`.

    A kind of adapter says with `needs` which parts it takes at least, and computes `delta`. The parts `alpha` (scale,
    or a limit, as the kind defines) and `dora_scale` (see `_decomposed`) are common to all.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, parts: AdapterParts):
        self.parts = dict(parts)

    @classmethod
    def load(cls, parts: AdapterParts) -> WeightAdapter | None:
        """The adapter of this kind that `parts` make, or None if they are of another kind."""
        if not all(name in parts for name in cls.needs):
            return None
        return cls({k: v for k, v in parts.items() if k in (*cls.needs, *cls.takes, "alpha", "dora_scale")})

    @property
    def alpha(self) -> float | None:
        alpha = self.parts.get("alpha")
        return None if alpha is None else alpha.item()

    def delta(self, weight: Tensor, strength: float) -> Tensor:
        """The change at strength 1, in shape, dtype and on the device of `weight` (float32 or what is computed in).
        Kinds whose change is no multiple of one tensor also look at the strength."""
        raise NotImplementedError

    def calculate_weight(
        self,
        weight: Tensor,
        key: str,
        strength: float,
        strength_model: float,
        offset: tuple[int, int, int] | None,
        function: Callable[[Tensor], Tensor],
        intermediate_dtype: torch.dtype = torch.float32,
        original_weight: Any = None,
    ) -> Tensor:
        """`weight`, in place where its shape stays, plus the change. One that does not fit is logged and left out."""
        try:
            weight = self._grown(weight)
            base = weight.to(intermediate_dtype)
            change = function(self.delta(base, strength))
            if "dora_scale" in self.parts:
                change = self._decomposed(base, change)
        except MISFITS as error:
            if is_oom(error):
                raise
            log.error("%s does not fit %s of shape %s and was left out: %s", self.name, key, tuple(weight.shape), error)
            return weight
        weight += (change * strength).to(weight.dtype)
        return weight

    def _grown(self, weight: Tensor) -> Tensor:
        """The weight as this adapter expects it; kinds that widen a layer pad it with zeros."""
        return weight

    def _decomposed(self, weight: Tensor, change: Tensor) -> Tensor:
        """The change for which the weight gets the learned magnitudes (DoRA, Liu et al. 2024).

        Magnitudes of rows refer to the norms of the weight before the change, magnitudes of columns to those of the
        changed one.
        """
        scale = self._part("dora_scale", weight)
        changed = weight + change
        per_row = scale.shape[0] == weight.shape[0]
        measured, dims = (weight, tuple(range(1, weight.ndim))) if per_row else (changed, _all_but(weight.ndim, 1))
        norm = torch.linalg.vector_norm(measured, dim=dims, keepdim=True) + torch.finfo(weight.dtype).eps
        return changed * (scale.reshape(norm.shape) / norm) - weight

    def _part(self, name: str, like: Tensor) -> Tensor:
        """A part in dtype and on the device of `like`."""
        return self.parts[name].to(device=like.device, dtype=like.dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(f'{k} {tuple(v.shape)}' for k, v in self.parts.items())}>"


def _all_but(dims: int, kept: int) -> tuple[int, ...]:
    return tuple(d for d in range(dims) if d != kept)


def rebuilt_kernel(core: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """A convolution's kernel from its Tucker decomposition: core [r, s, h, w], rows [r, out], columns [s, in] ->
    [out, in, h, w]."""
    return torch.einsum("rshw,ro,si->oihw", core, rows, columns)
