"""GLIGEN: a text with a box for each thing in the picture (Li et al. 2023, "Open-Set Grounded Text-to-Image
Generation").

A gated self-attention in each transformer of a UNet lets the image tokens look at the boxes' tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import CrossAttention, FeedForward

FREQUENCIES = 8
BASE = 100.0
HIDDEN = 512


def box_embedding(boxes: Tensor) -> Tensor:
    """[..., 4] of edges in 0..1 -> [..., 64]: sines and cosines of each at 8 frequencies."""
    frequencies = BASE ** (torch.arange(FREQUENCIES, device=boxes.device, dtype=torch.float32) / FREQUENCIES)
    angles = boxes.float().unsqueeze(-2) * frequencies[:, None]
    return torch.stack([angles.sin(), angles.cos()], dim=-2).flatten(-3)


class PositionNet(nn.Module):
    """A token per box, of what is in it and where it is."""

    def __init__(self, text_width: int, out_width: int, operations=comfy.ops.manual_cast, **factory):
        super().__init__()
        place = FREQUENCIES * 2 * 4
        self.linears = nn.Sequential(
            operations.Linear(text_width + place, HIDDEN, **factory),
            nn.SiLU(),
            operations.Linear(HIDDEN, HIDDEN, **factory),
            nn.SiLU(),
            operations.Linear(HIDDEN, out_width, **factory),
        )
        self.null_positive_feature = nn.Parameter(torch.empty(text_width, **factory), requires_grad=False)
        self.null_position_feature = nn.Parameter(torch.empty(place, **factory), requires_grad=False)

    def forward(self, boxes: Tensor, given: Tensor, texts: Tensor) -> Tensor:
        """boxes: [batch, n, 4] (left, top, right, bottom); given: [batch, n], 1 where there is a box and 0 for a place
        to fill up; texts: [batch, n, text_width]. Returns [batch, n, out_width] in float32."""
        given = given.unsqueeze(-1).float()
        places = torch.lerp(self.null_position_feature.to(given), box_embedding(boxes), given)
        texts = torch.lerp(self.null_positive_feature.to(given), texts.float(), given)
        return self.linears(torch.cat([texts, places], dim=-1))


class GatedSelfAttention(nn.Module):
    """Image tokens look at themselves and at the boxes' tokens; both halves behind a learned gate."""

    def __init__(self, width: int, object_width: int, heads: int, operations=comfy.ops.manual_cast, **factory):
        super().__init__()
        self.linear = operations.Linear(object_width, width, **factory)
        self.attn = CrossAttention(width, heads=heads, dim_head=width // heads, operations=operations, **factory)
        self.ff = FeedForward(width, glu=True, operations=operations, **factory)
        self.norm1 = operations.LayerNorm(width, **factory)
        self.norm2 = operations.LayerNorm(width, **factory)
        self.alpha_attn = nn.Parameter(torch.empty((), **factory), requires_grad=False)
        self.alpha_dense = nn.Parameter(torch.empty((), **factory), requires_grad=False)

    def forward(self, x: Tensor, objects: Tensor) -> Tensor:
        """x: [batch, tokens, width]; objects: [batch, n, object_width]."""
        joint = self.norm1(torch.cat([x, self.linear(objects)], dim=1))
        x = x + self.alpha_attn.to(x).tanh() * self.attn(joint)[:, : x.shape[1]]
        return x + self.alpha_dense.to(x).tanh() * self.ff(self.norm2(x))


def heads_of(width: int, object_width: int) -> int:
    """Stable Diffusion 1 has 8 heads everywhere, its successors heads of 64."""
    return 8 if object_width == 768 else math.ceil(width / 64)


class Gligen(nn.Module):
    """The net of the boxes, and one gated attention per transformer of the UNet, in the UNet's order."""

    def __init__(self, position_net: PositionNet, fusers: list[GatedSelfAttention], key_dim: int, dtype=None):
        super().__init__()
        self.position_net = position_net
        self.module_list = nn.ModuleList(fusers)
        self.key_dim = key_dim
        self.dtype = dtype


def fuser_prefixes(sd: Mapping[str, Tensor]) -> list[str]:
    """Prefixes of the fusers in the file, in the order in which a UNet passes its transformers."""
    stages = {"input_blocks": 0, "middle_block": 1, "output_blocks": 2}
    found = {}
    for key in sd:
        before, mark, _ = key.partition(".fuser.")
        parts = before.split(".")
        if mark and parts[0] in stages:
            found[before + mark] = (stages[parts[0]], *(int(p) for p in parts[1:] if p.isdigit()))
    return sorted(found, key=found.__getitem__)
