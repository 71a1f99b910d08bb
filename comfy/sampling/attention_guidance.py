"""Guidance inside the attention: the positive prediction is led away from the negative one in every layer.

Source: Chen et al. 2025, "Normalized Attention Guidance" (arXiv 2505.21130).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

POSITIVE, NEGATIVE = 0, 1
TINY_NORM = 1e-6


def normalized_guidance(positive: Tensor, negative: Tensor, scale: float, alpha: float, tau: float) -> Tensor:
    """`positive` led away from `negative`, both [..., tokens, width].

    Extrapolated by `scale` (1: not at all), shortened where its L1 norm exceeds `tau` times the positive's, then mixed
    with the positive: `alpha` of it.
    """
    guided = positive * scale - negative * (scale - 1.0)
    length = positive.abs().sum(dim=-1, keepdim=True).clamp_min(TINY_NORM)
    ratio = (guided.abs().sum(dim=-1, keepdim=True) / length).clamp_min(TINY_NORM)
    guided = guided * (ratio.clamp_max(tau) / ratio)
    return guided * alpha + positive * (1.0 - alpha)


class NormalizedAttentionGuidance:
    """An output patch for the attentions that look at the text. It works on calls that hold positive and negative in
    one batch; in others nothing is to be compared, which is logged once."""

    def __init__(self, scale: float, alpha: float, tau: float) -> None:
        self.scale, self.alpha, self.tau = scale, alpha, tau
        self._told = False

    def joint(self, out: Tensor, options: dict[str, Any]) -> Tensor:
        """For `attn1_output_patch`: the image's tokens of an attention over text and image. Attentions of the image to
        itself alone (UNets) are none of its business."""
        place = options.get("img_slice")
        if place is None:
            return out
        image = self.cross(out[:, place[0] : place[1]], options)
        return torch.cat([out[:, : place[0]], image, out[:, place[1] :]], dim=1)

    def cross(self, out: Tensor, options: dict[str, Any]) -> Tensor:
        """For `attn2_output_patch`: all tokens [batch, tokens, width]."""
        sides = options.get("cond_or_uncond") or []
        if POSITIVE not in sides or NEGATIVE not in sides:
            self._tell(sides)
            return out
        rows = list(out.chunk(len(sides)))
        negative = rows[sides.index(NEGATIVE)]
        for i, side in enumerate(sides):
            if side == POSITIVE:
                rows[i] = normalized_guidance(rows[i], negative, self.scale, self.alpha, self.tau)
        return torch.cat(rows)

    def _tell(self, sides: list[int]) -> None:
        if self._told or POSITIVE not in sides:
            return
        self._told = True
        log.warning(
            "Normalized attention guidance has no effect where positive and negative are not evaluated in one batch: "
            "their prompts are of too different length for this model, or memory is short"
        )
