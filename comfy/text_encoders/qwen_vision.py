"""The eyes of Qwen 2.5 VL: a picture becomes tokens for the language model.

Source: Bai et al. 2025, "Qwen2.5-VL Technical Report" (Apache-2.0): patches of 14 pixels with rotary positions in two
axes, attention within windows of 112 pixels but in a few blocks, and four neighbouring patches joined into one token.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.dit import count_blocks

PATCH, MERGE, WINDOW = 14, 2, 4  # pixels; patches per token and side; tokens per window and side
FRAMES = 2  # a picture is shown twice
HEAD_WIDTH = 80
THETA = 10000.0
EPS = 1e-6
MIN_PIXELS, MAX_PIXELS = 56 * 56, 12845056
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclasses.dataclass(frozen=True)
class QwenVisionConfig:
    """full_attention: blocks in which all patches see each other."""

    width: int = 1280
    depth: int = 32
    mlp_width: int = 3420
    out_width: int = 3584
    head_width: int = HEAD_WIDTH
    full_attention: tuple[int, ...] = (7, 15, 23, 31)


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> QwenVisionConfig:
    """From tensor shapes below `prefix`; `overrides` win. Raises KeyError naming a missing tensor."""
    mlp_width, width = sd[f"{prefix}blocks.0.mlp.gate_proj.weight"].shape
    values = {
        "width": width,
        "depth": count_blocks(sd, prefix + "blocks.{}.attn.qkv.weight"),
        "mlp_width": mlp_width,
        "out_width": sd[f"{prefix}merger.mlp.2.weight"].shape[0],
    }
    return QwenVisionConfig(**{**values, **overrides})


def fitting_size(height: int, width: int) -> tuple[int, int]:
    """The nearest size of whole tokens, with no fewer and no more pixels than the model was trained for."""
    step = PATCH * MERGE
    rows, columns = (max(step, round(n / step) * step) for n in (height, width))
    if rows * columns > MAX_PIXELS:
        scale = math.sqrt(height * width / MAX_PIXELS)
        rows, columns = (max(step, math.floor(n / scale / step) * step) for n in (height, width))
    elif rows * columns < MIN_PIXELS:
        scale = math.sqrt(MIN_PIXELS / (height * width))
        rows, columns = (math.ceil(n * scale / step) * step for n in (height, width))
    return rows, columns


def patches_of(image: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """A picture [height, width, 3] in 0..1 as patch vectors [patches, 3 * 2 * 14 * 14], four of a token in a row, and
    its rows and columns of patches."""
    pixels = image[..., :3].movedim(-1, 0).float().unsqueeze(0)
    size = fitting_size(*pixels.shape[-2:])
    pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)[0]
    mean, std = (torch.tensor(v, device=pixels.device).view(3, 1, 1) for v in (MEAN, STD))
    pixels = (pixels - mean) / std
    rows, columns = (n // PATCH for n in size)
    pixels = pixels.reshape(3, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
    pixels = pixels.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5).expand(-1, -1, -1, -1, -1, FRAMES, -1, -1)
    return pixels.flatten(4).flatten(0, 3), (rows, columns)


def patch_places(rows: int, columns: int, device: Any = None) -> Tensor:
    """Row and column [patches, 2] of each patch, in the order of `patches_of`."""
    grid = torch.stack(
        torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij"), dim=-1
    )
    grid = grid.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, 2).permute(0, 2, 1, 3, 4)
    return grid.reshape(-1, 2)


def windows_of(rows: int, columns: int, device: Any = None) -> list[Tensor]:
    """Patch numbers of the windows, one tensor [windows, patches of one] per size that windows have."""
    places = patch_places(rows, columns, device) // (WINDOW * MERGE)
    across = places[:, 1].max() + 1
    _, window, sizes = torch.unique(places[:, 0] * across + places[:, 1], return_inverse=True, return_counts=True)
    order = torch.argsort(window, stable=True)
    per_window = order.split(sizes.tolist())
    return [torch.stack([w for w in per_window if len(w) == size]) for size in sorted({len(w) for w in per_window})]


def rope(places: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [patches, head_width / 2]: half of the pairs turn by the row, half by the column."""
    quarter = head_width // 4
    frequencies = THETA ** -(torch.arange(quarter, dtype=torch.float32, device=places.device) / quarter)
    angles = (places[..., None].float() * frequencies).flatten(1)
    return angles.cos(), angles.sin()


def turned(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """`x` [heads, patches, width] with the pairs (x_i, x_{i + width / 2}) turned."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = table
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: QwenVisionConfig, operations: Any, **factory: Any):
        super().__init__()
        self.heads = config.width // config.head_width
        self.qkv = operations.Linear(config.width, config.width * 3, **factory)
        self.proj = operations.Linear(config.width, config.width, **factory)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], groups: list[Tensor]) -> Tensor:
        """x: [patches, width]; groups: patch numbers [groups, patches of one] that see one another."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        q, k = turned(q, table), turned(k, table)
        out = torch.empty_like(x)
        for group in groups:
            parts = (t[:, group].transpose(0, 1) for t in (q, k, v))
            out[group] = optimized_attention(*parts, self.heads, skip_reshape=True)
        return self.proj(out)


class MLP(nn.Module):
    def __init__(self, config: QwenVisionConfig, operations: Any, **factory: Any):
        super().__init__()
        self.gate_proj = operations.Linear(config.width, config.mlp_width, **factory)
        self.up_proj = operations.Linear(config.width, config.mlp_width, **factory)
        self.down_proj = operations.Linear(config.mlp_width, config.width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: QwenVisionConfig, operations: Any, **factory: Any):
        super().__init__()
        self.norm1 = operations.RMSNorm(config.width, eps=EPS, **factory)
        self.norm2 = operations.RMSNorm(config.width, eps=EPS, **factory)
        self.attn = Attention(config, operations, **factory)
        self.mlp = MLP(config, operations, **factory)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], groups: list[Tensor]) -> Tensor:
        x = x + self.attn(self.norm1(x), table, groups)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, config: QwenVisionConfig, operations: Any, **factory: Any):
        super().__init__()
        kernel = (FRAMES, PATCH, PATCH)
        self.proj = operations.Conv3d(3, config.width, kernel, stride=kernel, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x.unflatten(-1, (3, FRAMES, PATCH, PATCH))).flatten(1)


class Merger(nn.Module):
    """Four patches to one token of the language model."""

    def __init__(self, config: QwenVisionConfig, operations: Any, **factory: Any):
        super().__init__()
        joined = config.width * MERGE**2
        self.ln_q = operations.RMSNorm(config.width, eps=EPS, **factory)
        self.mlp = nn.Sequential(
            operations.Linear(joined, joined, **factory),
            nn.GELU(),
            operations.Linear(joined, config.out_width, **factory),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.ln_q(x).reshape(-1, x.shape[-1] * MERGE**2))


class QwenVision(nn.Module):
    """A picture's patches to tokens."""

    def __init__(self, config: QwenVisionConfig, dtype=None, device=None, operations=comfy.ops.manual_cast):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.patch_embed = PatchEmbed(config, operations, **factory)
        self.blocks = nn.ModuleList(Block(config, operations, **factory) for _ in range(config.depth))
        self.merger = Merger(config, operations, **factory)

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """patches: see `patches_of`. Returns [rows * columns / 4, out_width] in the order of rows, then columns."""
        x = self.patch_embed(patches)
        table = rope(patch_places(rows, columns, x.device), self.config.head_width)
        windows = windows_of(rows, columns, x.device)
        everything = [torch.arange(len(x), device=x.device).unsqueeze(0)]
        for i, block in enumerate(self.blocks):
            x = block(x, table, everything if i in self.config.full_attention else windows)
        return self.merger(x)
