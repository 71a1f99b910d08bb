"""Pasting one batch of pictures or latents onto another."""

from __future__ import annotations

import torch

import comfy.utils


def composite(
    destination: torch.Tensor,
    source: torch.Tensor,
    x: int,
    y: int,
    mask: torch.Tensor | None = None,
    multiplier: int = 8,
    resize_source: bool = False,
) -> torch.Tensor:
    """A copy of `destination` [B,C,(T,)H,W] with `source` at (x, y), mixed by `mask` ([B,H,W], 1 = source).

    x, y: position in pixels, which may be negative; multiplier: how many pixels one element stands for.
    The source's batch and the mask's are repeated, or cut, to the destination's. The mask is resized to the source.
    Without resize_source the source keeps its size, and what reaches beyond the destination is left out.
    """
    result = destination.clone()
    source = source.to(result)
    if resize_source:
        source = _resize(source, *result.shape[-2:])
    source = comfy.utils.repeat_to_batch_size(source, result.shape[0])
    rows, columns = source.shape[-2:]
    # A position must leave at least a corner of the source in reach.
    x = min(max(x, -columns * multiplier), result.shape[-1] * multiplier) // multiplier
    y = min(max(y, -rows * multiplier), result.shape[-2] * multiplier) // multiplier
    if mask is None:
        weight = torch.ones_like(source)
    else:
        weight = _resize(mask.reshape((-1, 1, *mask.shape[-2:])).to(result), rows, columns)
        weight = comfy.utils.repeat_to_batch_size(weight, result.shape[0])
        if result.ndim == 5:
            weight = weight.unsqueeze(2)
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + rows, result.shape[-2]), min(x + columns, result.shape[-1])
    inner = (..., slice(top - y, bottom - y), slice(left - x, right - x))
    outer = (..., slice(top, bottom), slice(left, right))
    share = weight[inner]
    result[outer] = source[inner] * share + result[outer] * (1.0 - share)
    return result


def _resize(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    size = (*values.shape[2:-2], rows, columns)
    return torch.nn.functional.interpolate(values, size=size, mode="trilinear" if values.ndim == 5 else "bilinear")
