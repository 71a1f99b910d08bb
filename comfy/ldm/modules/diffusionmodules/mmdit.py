"""The transformer of Stable Diffusion 3: `comfy.models.mmdit`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import comfy.models.mmdit
from comfy.faces import mirror
from comfy.ldm.common_dit import rms_norm


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis of width `dim`; with `elementwise_affine` times a learned weight."""

    def __init__(
        self,
        dim: int,
        elementwise_affine: bool = False,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ):
        super().__init__()
        self.eps = eps
        self.learnable_scale = elementwise_affine
        weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


mirror(__name__, comfy.models.mmdit)
