"""Changing the size of images and latents [batch, channels, height, width].

Facts of the methods: goldens/nodes, "Resampling".
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def common_upscale(samples: Tensor, width: int, height: int, upscale_method: str, crop: str) -> Tensor:
    """Resize [B,C,H,W] (or [B,C,T,H,W], frame by frame) to width x height, up or down.

    upscale_method: `nearest-exact`, `bilinear`, `area`, `bicubic` (torch, without antialiasing, bicubic not
    clipped), `bislerp`, `lanczos`. crop: `center` cuts the larger side to the new aspect first, `disabled`
    stretches.
    """
    if samples.ndim > 4:
        batch, _, frames = samples.shape[:3]
        flat = samples.transpose(1, 2).flatten(0, 1)
        flat = common_upscale(flat, width, height, upscale_method, crop)
        return flat.unflatten(0, (batch, frames)).transpose(1, 2)
    if crop == "center":
        samples = _cut_to_aspect(samples, width / height)
    if upscale_method == "bislerp":
        return bislerp(samples, width, height)
    if upscale_method == "lanczos":
        return lanczos(samples, width, height)
    return F.interpolate(samples, size=(height, width), mode=upscale_method)


def _cut_to_aspect(samples: Tensor, aspect: float) -> Tensor:
    height, width = samples.shape[-2:]
    x = y = 0
    if width / height > aspect:
        x = round((width - width * (aspect / (width / height))) / 2)
    elif width / height < aspect:
        y = round((height - height * ((width / height) / aspect)) / 2)
    return samples.narrow(-2, y, height - 2 * y).narrow(-1, x, width - 2 * x)


def lanczos(samples: Tensor, width: int, height: int) -> Tensor:
    """Pillow's Lanczos filter on 8-bit values (truncated, so the result lies on k/255)."""
    from PIL import Image

    out = []
    for image in samples:
        pixels = np.clip(255.0 * image.movedim(0, -1).float().cpu().numpy(), 0, 255).astype(np.uint8)
        resized = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
        resized = np.asarray(resized.resize((width, height), resample=Image.Resampling.LANCZOS))
        # A one-channel image loses its channel axis here and gets it back.
        resized = resized.reshape(height, width, -1).astype(np.float32) / 255.0
        out.append(torch.from_numpy(resized).movedim(-1, 0))
    return torch.stack(out).to(device=samples.device, dtype=samples.dtype)


def bislerp(samples: Tensor, width: int, height: int) -> Tensor:
    """Bilinear positions, but between two channel vectors along the arc: direction by spherical
    interpolation, length linearly. Keeps the contrast of latents that plain averaging loses."""
    x = samples.float()
    x = _slerp_axis(x, width, -1)
    x = _slerp_axis(x, height, -2)
    return x.to(samples.dtype)


def _slerp_axis(x: Tensor, size: int, dim: int) -> Tensor:
    left, right, ratio = _linear_positions(x.shape[dim], size, x.device)
    shape = [1] * x.ndim
    shape[dim] = size
    return _slerp(x.index_select(dim, left), x.index_select(dim, right), ratio.view(shape))


def _linear_positions(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbours and mixing ratio of each new cell, as torch's bilinear interpolation takes them."""
    position = (torch.arange(new, dtype=torch.float32, device=device) + 0.5) * (old / new) - 0.5
    position = position.clamp(0, old - 1)
    left = position.floor()
    right = (left + 1).clamp(max=old - 1)
    return left.long(), right.long(), position - left


# Beyond these the arc is not defined well: nearly equal vectors, nearly opposite ones.
_PARALLEL = 1 - 1e-5
_OPPOSITE = 1e-5 - 1


def _slerp(a: Tensor, b: Tensor, ratio: Tensor) -> Tensor:
    """Between the channel vectors (dim 1) of a and b; zero vectors count as having no direction."""
    length_a = a.norm(dim=1, keepdim=True)
    length_b = b.norm(dim=1, keepdim=True)
    unit_a = torch.where(length_a > 0, a / length_a, torch.zeros_like(a))
    unit_b = torch.where(length_b > 0, b / length_b, torch.zeros_like(b))
    dot = (unit_a * unit_b).sum(dim=1, keepdim=True)
    omega = torch.acos(dot.clamp(-1, 1))
    sine = torch.sin(omega)
    mixed = (torch.sin((1 - ratio) * omega) / sine) * unit_a + (torch.sin(ratio * omega) / sine) * unit_b
    mixed = mixed * (length_a * (1 - ratio) + length_b * ratio)
    mixed = torch.where(dot > _PARALLEL, a, mixed)
    return torch.where(dot < _OPPOSITE, a * (1 - ratio) + b * ratio, mixed)


def reshape_mask(input_mask: Tensor, output_shape: tuple[int, ...]) -> Tensor:
    """A mask [B,H,W], [B,C,H,W] or [H,W] at the size of a latent of `output_shape` [B,C,(T,)H,W]: resized
    linearly, channels and batch repeated or cut."""
    from comfy.state_dicts import repeat_to_batch_size

    dims = len(output_shape) - 2
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    mask = input_mask
    if dims == 1:
        mask = mask.reshape(-1, 1, mask.shape[-1])
    elif dims == 2:
        mask = mask.reshape(-1, 1, *mask.shape[-2:])
    elif mask.ndim < 5:
        mask = mask.reshape(1, 1, -1, *mask.shape[-2:])
    mask = F.interpolate(mask, size=tuple(output_shape[2:]), mode=mode)
    if mask.shape[1] < output_shape[1]:
        mask = mask.repeat((1, output_shape[1]) + (1,) * dims)[:, : output_shape[1]]
    return repeat_to_batch_size(mask, output_shape[0])
