"""A control beside every block of Qwen-Image (DiffSynth-Studio 2025, Apache-2.0): what a block has made of the
picture's tokens, and the tokens of the picture that controls, become something to add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

import comfy.ops
from comfy.models.dit import count_blocks

NORM_EPS = 1e-6


class ControlBlock(nn.Module):
    def __init__(self, width: int, operations: Any, **factory: Any):
        super().__init__()
        self.x_rms = operations.RMSNorm(width, eps=NORM_EPS, **factory)
        self.y_rms = operations.RMSNorm(width, eps=NORM_EPS, **factory)
        self.input_proj = operations.Linear(width, width, **factory)
        self.act = nn.GELU()
        self.output_proj = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.output_proj(self.act(self.input_proj(self.x_rms(x) + self.y_rms(y))))


class BlockwiseControl(nn.Module):
    """in_width: of a patch of the picture's latent, with a mask where there is one."""

    def __init__(
        self, blocks: int, in_width: int, width: int, dtype=None, device=None, operations=comfy.ops.manual_cast
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.in_width = in_width
        self.dtype = dtype
        self.img_in = operations.Linear(in_width, width, **factory)
        self.controlnet_blocks = nn.ModuleList(ControlBlock(width, operations, **factory) for _ in range(blocks))

    def forward(self, tokens: Tensor, hint: Tensor, number: int) -> Tensor:
        """What to add to the image tokens [batch, n, width] after block `number`; hint: [batch or 1, n, width], from
        `img_in`."""
        return self.controlnet_blocks[number](tokens, hint)


def shape_from_state_dict(sd: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """(blocks, in_width, width). Raises KeyError naming a missing tensor."""
    width, in_width = sd["img_in.weight"].shape
    return count_blocks(sd, "controlnet_blocks.{}.y_rms.weight"), in_width, width
