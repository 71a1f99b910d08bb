"""Rotary position embeddings over one or several axes.

Source: Su et al. 2021 (RoFormer). An axis of width d turns d / 2 pairs of channels by position * theta^(-2k/d);
with several axes (row, column, frame...) the channels of a head are divided among them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_table(ids: Tensor, axes_dim: tuple[int, ...], theta: float) -> Tensor:
    """Cosines and sines [batch, 1, tokens, sum(axes_dim) / 2, 2] for positions `ids` [batch, tokens, axes].

    The second axis is there to broadcast over heads. Angles are formed in float64, since positions times
    frequencies lose their fraction in float32; the table is float32.
    """
    if ids.shape[-1] != len(axes_dim):
        raise ValueError(f"positions have {ids.shape[-1]} axes, the model {len(axes_dim)}: {tuple(axes_dim)}")
    precise = torch.float32 if ids.device.type == "mps" else torch.float64
    angles = []
    for axis, dim in enumerate(axes_dim):
        exponents = torch.arange(0, dim, 2, dtype=precise, device=ids.device) / dim
        angles.append(ids[..., axis, None].to(precise) * theta**-exponents)
    angle = torch.cat(angles, dim=-1)
    return torch.stack([angle.cos(), angle.sin()], dim=-1).float().unsqueeze(1)


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """`x` [batch, heads, tokens, width] with its consecutive pairs (x0, x1), (x2, x3)... turned; computed in the
    table's float32. table: as `rope_table` makes it, or whole rotations [..., tokens, width / 2, 2, 2]."""
    if table.ndim > x.ndim + 1:
        table = table[..., 0]  # the first column of a rotation: cosine, sine
    first, second = x.to(table.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table.unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)


def grid_ids(*sizes: int, start: tuple[float, ...] | None = None, device=None) -> Tensor:
    """Positions [1, cells, axes] of a grid, last axis running fastest; `start` is added to each axis."""
    start = start or (0,) * len(sizes)
    axes = [torch.arange(n, device=device, dtype=torch.float32) + s for n, s in zip(sizes, start)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2).unsqueeze(0)


# Position axes and what the options call them: image or frame, row, column.
_AXES = ("t", "y", "x")


def scaled_ids(ids: Tensor, transformer_options: dict | None) -> Tensor:
    """Positions [..., 3 or more] of an image as `transformer_options["rope_options"]` wants them: each axis times its
    `scale_`, plus its `shift_` (t, y, x)."""
    options = (transformer_options or {}).get("rope_options")
    if not options:
        return ids
    ids = ids.clone()
    for axis, name in enumerate(_AXES):
        scale, shift = float(options.get(f"scale_{name}", 1.0)), float(options.get(f"shift_{name}", 0.0))
        ids[..., axis] = ids[..., axis] * scale + shift
    return ids
