"""Rotary positions and attention of the FLUX family.

Source: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from comfy.models.attention import optimized_attention
from comfy.models.rope import apply_rope as apply_table
from comfy.models.rope import rope_table

__all__ = ["apply_rope", "apply_rope1", "attention", "rope"]


def rope(pos: Tensor, dim: int, theta: float) -> Tensor:
    """Rotations [batch, tokens, dim / 2, 2, 2] in float32 for positions [batch, tokens] of one axis."""
    table = rope_table(pos.unsqueeze(-1), (dim,), theta).squeeze(1)
    cos, sin = table.unbind(-1)
    return torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))


def apply_rope1(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """`x` [batch, heads, tokens, width], its consecutive pairs turned. freqs_cis: rotations
    [..., tokens, width / 2, 2, 2], or what the blocks of our models are handed as `pe`: [..., tokens, width / 2, 2]
    cosines and sines."""
    return apply_table(x, freqs_cis)


def apply_rope(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned; see `apply_rope1`."""
    return apply_rope1(xq, freqs_cis), apply_rope1(xk, freqs_cis)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pe: Tensor | None,
    mask: Tensor | None = None,
    transformer_options: dict | None = None,
) -> Tensor:
    """Attention of turned queries and keys [batch, heads, tokens, width]; returns [batch, tokens, heads * width]."""
    if pe is not None:
        q, k = apply_rope(q, k, pe)
    return optimized_attention(q, k, v, q.shape[1], mask=mask, skip_reshape=True)
