"""Self-attention guidance: away from a prediction whose salient parts were blurred (Hong et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import comfy.samplers

BLUR_KERNEL = 9
# Tokens that get more than this much attention in all count as salient.
THRESHOLD = 1.0
# Latents this small or smaller hold nothing to blur.
MIN_SIDE = 4

NEGATIVE = 1


class SelfAttentionGuidance:
    """`attend` replaces the middle block's self-attention and keeps the negative's scores; `guide` uses them on the
    guided prediction."""

    def __init__(self, scale: float, blur_sigma: float):
        self.scale = scale
        self.blur_sigma = blur_sigma
        self._salient: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
        heads, entries = options["n_heads"], options["cond_or_uncond"]
        dtype = options.get("attn_precision") or q.dtype
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = (q.to(dtype) @ k.to(dtype).transpose(-1, -2)) * q.shape[-1] ** -0.5
        scores = scores.softmax(dim=-1)
        if NEGATIVE in entries:
            rows = scores.shape[0] // len(entries)
            place = entries.index(NEGATIVE) * rows
            received = scores[place : place + rows].mean(dim=1).sum(dim=1)
            size = options["activations_shape"][-2:]
            self._salient = (received > THRESHOLD).to(v.dtype).unflatten(1, tuple(size)).unsqueeze(1)
        return (scores.to(v.dtype) @ v).transpose(1, 2).flatten(2)

    def guide(self, args: dict[str, Any]) -> Tensor:
        guided, negative, x = args["denoised"], args["uncond_denoised"], args["input"]
        if self._salient is None or self.scale == 0 or min(guided.shape[2:]) <= MIN_SIDE:
            return guided
        salient, self._salient = self._salient, None
        degraded = self._blurred_where(negative, salient)
        noised = degraded + x - negative
        (again,) = comfy.samplers.calc_cond_batch(
            args["model"], [args["uncond"]], noised, args["sigma"], args["model_options"]
        )
        return guided + (degraded - again) * self.scale

    def _blurred_where(self, latent: Tensor, mask: Tensor) -> Tensor:
        mask = F.interpolate(mask.to(latent), latent.shape[-2:])
        return gaussian_blur(latent, self.blur_sigma) * mask + latent * (1 - mask)


def gaussian_blur(x: Tensor, sigma: float, kernel_size: int = BLUR_KERNEL) -> Tensor:
    """`x` [batch, channels, h, w] blurred, its border mirrored; sigma 0 leaves it."""
    if sigma <= 0:
        return x
    half = (kernel_size - 1) // 2
    places = torch.linspace(-half, half, kernel_size, device=x.device)
    curve = torch.exp(-0.5 * (places / sigma) ** 2)
    curve = (curve / curve.sum()).to(x.dtype)
    channels = x.shape[1]
    kernel = torch.outer(curve, curve).expand(channels, 1, kernel_size, kernel_size)
    return F.conv2d(F.pad(x, [half] * 4, mode="reflect"), kernel, groups=channels)
