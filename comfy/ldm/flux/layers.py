"""Layers of the FLUX family.

Source: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comfy.ldm.flux.math import rope

__all__ = ["EmbedND", "timestep_embedding"]


def timestep_embedding(t: Tensor, dim: int, max_period: float = 10000, time_factor: float = 1000.0) -> Tensor:
    """Sinusoids [n, dim] = cat(cos, sin) of `time_factor * t`, t [n], in the dtype of t if that is a floating one."""
    half = dim // 2
    frequencies = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
    angles = (time_factor * t)[:, None].float() * frequencies[None]
    embedding = F.pad(torch.cat([angles.cos(), angles.sin()], dim=-1), (0, dim % 2))
    return embedding.to(t.dtype) if t.is_floating_point() else embedding


class EmbedND(nn.Module):
    """Rotations for positions on several axes, which share the channels of a head: `axes_dim`."""

    def __init__(self, dim: int, theta: float, axes_dim: Sequence[int]):
        super().__init__()
        self.dim = dim
        self.theta = theta
        self.axes_dim = list(axes_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [batch, tokens, axes] -> [batch, 1, tokens, sum(axes_dim) / 2, 2, 2]."""
        turned = [rope(ids[..., i], dim, self.theta) for i, dim in enumerate(self.axes_dim)]
        return torch.cat(turned, dim=-3).unsqueeze(1)
