"""Layers of the FLUX family.

Source: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.faces import Face
from comfy.ldm.flux.math import rope
from comfy.models import flux_layers
from comfy.models.flux_layers import BlockShape, LastLayer, MLPEmbedder, Modulation, QKNorm

__all__ = [
    "DoubleStreamBlock",
    "EmbedND",
    "LastLayer",
    "MLPEmbedder",
    "Modulation",
    "QKNorm",
    "SingleStreamBlock",
    "timestep_embedding",
]


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


def _shape(
    width: int, heads: int, mlp_ratio: float, modulation: bool, mlp_silu_act: bool, yak_mlp: bool, **bias: bool
) -> BlockShape:
    """The shape of a block. mlp_silu_act and yak_mlp both mean a gated MLP."""
    gated = mlp_silu_act or yak_mlp
    return BlockShape(width, heads, int(width * mlp_ratio), modulation, gated, **bias)


class DoubleStreamBlock(flux_layers.DoubleStreamBlock, metaclass=Face):
    """Text and image tokens with weights of their own, made from single numbers. `forward` takes the rotations of
    `EmbedND` and the tables of our own models."""

    face = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_ratio: float,
        qkv_bias: bool = False,
        modulation: bool = True,
        mlp_silu_act: bool = False,
        proj_bias: bool = True,
        yak_mlp: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations: Any = comfy.ops.disable_weight_init,
    ):
        numbers = (hidden_size, num_heads, mlp_ratio, modulation, mlp_silu_act, yak_mlp)
        shape = _shape(*numbers, bias=proj_bias, qkv_bias=qkv_bias)
        super().__init__(shape, operations, dtype=dtype, device=device)


class SingleStreamBlock(flux_layers.SingleStreamBlock, metaclass=Face):
    """All tokens in one stream, made from single numbers. Attention scores are scaled by the width of a head; another
    `qk_scale` is refused."""

    face = True

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qk_scale: float | None = None,
        modulation: bool = True,
        mlp_silu_act: bool = False,
        bias: bool = True,
        yak_mlp: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations: Any = comfy.ops.disable_weight_init,
    ):
        if qk_scale is not None and not math.isclose(qk_scale, (hidden_size // num_heads) ** -0.5):
            raise ValueError(f"qk_scale {qk_scale!r}: scores are scaled by {(hidden_size // num_heads) ** -0.5}")
        shape = _shape(hidden_size, num_heads, mlp_ratio, modulation, mlp_silu_act, yak_mlp, bias=bias)
        super().__init__(shape, operations, dtype=dtype, device=device)
