"""What diffusion transformers share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

import comfy.ops
from comfy.models import dit

__all__ = ["pad_to_patch_size", "rms_norm"]


def pad_to_patch_size(img: Tensor, patch_size: tuple[int, ...] = (2, 2), padding_mode: str = "circular") -> Tensor:
    """`img` [batch, channels, *spatial] padded at the end of each side to a multiple of the patch."""
    return dit.pad_to_patch_size(img, patch_size, padding_mode)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """`x` over the root of the mean of its squares along the last axis (Zhang & Sennrich 2019), times `weight`."""
    if weight is not None:
        weight = comfy.ops.cast_to(weight, dtype=x.dtype, device=x.device)
    return F.rms_norm(x, x.shape[-1:], weight, eps)
