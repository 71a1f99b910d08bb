"""PixArt, alpha and Sigma: a DiT with cross-attention to T5 tokens and one modulation for all blocks. Alpha is also
told the size and the aspect ratio of the picture.

Sources: Chen et al. 2023 (PixArt-alpha: adaLN-single), Chen et al. 2024 (PixArt-Sigma: up to 4K, T5 context of 300
tokens), Peebles & Xie 2023 (DiT).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import cross_attention_output
from comfy.models.dit import (
    BlockHooks,
    FromDict,
    Mlp,
    TimestepEmbedder,
    count_blocks,
    modulate,
    pad_to_patch_size,
    plain_norm,
    unpatchify,
)

NUM_HEADS = 16
# Latent cells per side of the image size the position embedding was first trained at (512 pixels).
BASE_CELLS = 64
PIXELS_PER_CELL = 8


@dataclasses.dataclass(frozen=True)
class PixArtConfig(FromDict):
    """Shape of the transformer. out_channels: as the file has them, mean and variance; the variance is dropped.
    pe_interpolation: how many times the base resolution one position step spans; None: from the size of the
    latent. micro_condition: told height, width and aspect ratio."""

    in_channels: int = 4
    out_channels: int = 8
    patch_size: int = 2
    hidden_size: int = 1152
    depth: int = 28
    num_heads: int = NUM_HEADS
    caption_channels: int = 4096
    model_max_length: int = 300
    pe_interpolation: float | None = None
    micro_condition: bool = False


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> PixArtConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (number of heads and
    interpolation are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    hidden_size, in_channels, patch, _ = shape("x_embedder.proj.weight")
    length, caption_channels = shape("y_embedder.y_embedding")
    values: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": shape("final_layer.linear.weight")[0] // patch**2,
        "patch_size": patch,
        "hidden_size": hidden_size,
        "depth": count_blocks(sd, prefix + "blocks.{}.attn.qkv.weight"),
        "caption_channels": caption_channels,
        "model_max_length": length,
        "micro_condition": f"{prefix}csize_embedder.mlp.0.weight" in sd,
    }
    values.update(overrides)
    return PixArtConfig(**values)


@functools.lru_cache(maxsize=8)
def position_embedding(
    width: int,
    rows: int,
    columns: int,
    cells: tuple[int, int],
    interpolation: float | None,
    device: torch.device | None = None,
) -> Tensor:
    """Sinusoids [1, rows * columns, width] of column and row, half of the width each.

    cells: height and width of the latent. Positions are scaled so that any size covers the range of the trained one;
    without `interpolation` that follows from the size too. Remembered, since all steps of a run ask for the same.
    """
    mean = (cells[0] + cells[1]) / 2
    multiple = max(1, round(mean / BASE_CELLS))
    base = multiple * BASE_CELLS / 2
    interpolation = multiple if interpolation is None else interpolation
    quarter = width // 4
    with torch.inference_mode(False):
        frequencies = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
        parts = []
        for count in (columns, rows):
            positions = torch.arange(count, dtype=torch.float64) / (count / base) / interpolation
            angles = positions[:, None] * frequencies
            parts.append(torch.cat([angles.sin(), angles.cos()], dim=-1).float())
        by_column = parts[0][None, :].expand(rows, -1, -1)
        by_row = parts[1][:, None].expand(-1, columns, -1)
        return torch.cat([by_column, by_row], dim=-1).flatten(0, 1).unsqueeze(0).to(device)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, operations, **factory):
        super().__init__()
        self.heads = heads
        self.qkv = operations.Linear(width, 3 * width, **factory)
        self.proj = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(optimized_attention(*self.qkv(x).chunk(3, dim=-1), self.heads))


class CrossAttention(nn.Module):
    def __init__(self, width: int, heads: int, operations, **factory):
        super().__init__()
        self.heads = heads
        self.q_linear = operations.Linear(width, width, **factory)
        self.kv_linear = operations.Linear(width, 2 * width, **factory)
        self.proj = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None, options: dict | None = None) -> Tensor:
        k, v = self.kv_linear(context).chunk(2, dim=-1)
        out = optimized_attention(self.q_linear(x), k, v, self.heads, mask=mask)
        return self.proj(cross_attention_output(options, out))


class Block(nn.Module):
    """Self-attention, cross-attention, MLP. The modulation is the model's plus a table of the block's own."""

    def __init__(self, width: int, heads: int, operations, **factory):
        super().__init__()
        self.attn = SelfAttention(width, heads, operations, **factory)
        self.cross_attn = CrossAttention(width, heads, operations, **factory)
        self.mlp = Mlp(width, 4 * width, operations, **factory)
        self.scale_shift_table = nn.Parameter(torch.empty(6, width, **factory), requires_grad=False)

    def forward(
        self, x: Tensor, context: Tensor, t: Tensor, mask: Tensor | None = None, options: dict | None = None
    ) -> Tensor:
        """x [batch, n, width], context [batch, m, width], t [batch, 6, width]; options: of the patches in its
        attention."""
        mod = (self.scale_shift_table.to(t) + t).chunk(6, dim=1)
        x = x + mod[2] * self.attn(modulate(plain_norm(x), mod[0], mod[1]))
        x = x + self.cross_attn(x, context, mask, options)
        return x + mod[5] * self.mlp(modulate(plain_norm(x), mod[3], mod[4]))


class PatchEmbed(nn.Module):
    def __init__(self, patch: int, in_channels: int, width: int, operations, **factory):
        super().__init__()
        self.proj = operations.Conv2d(in_channels, width, patch, stride=patch, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class CaptionEmbedder(nn.Module):
    """Text tokens to the model's width. `y_embedding` stands for a dropped caption in training; files carry it."""

    def __init__(self, in_width: int, width: int, length: int, operations, **factory):
        super().__init__()
        self.y_embedding = nn.Parameter(torch.empty(length, in_width, **factory), requires_grad=False)
        self.y_proj = Mlp(in_width, width, operations, out=width, **factory)

    def forward(self, context: Tensor) -> Tensor:
        return self.y_proj(context)


class FinalLayer(nn.Module):
    def __init__(self, width: int, out_width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(width, out_width, **factory)
        self.scale_shift_table = nn.Parameter(torch.empty(2, width, **factory), requires_grad=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shift, scale = (self.scale_shift_table.to(t) + t.unsqueeze(1)).chunk(2, dim=1)
        return self.linear(modulate(plain_norm(x), shift, scale))


class PixArt(nn.Module):
    """Predicts the noise in a latent at a timestep, given T5 tokens."""

    def __init__(
        self,
        config: PixArtConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width, patch = config.hidden_size, config.patch_size
        self.config = config
        self.dtype = dtype
        self.x_embedder = PatchEmbed(patch, config.in_channels, width, operations, **factory)
        self.t_embedder = TimestepEmbedder(width, operations, **factory)
        self.csize_embedder = self.ar_embedder = None
        if config.micro_condition:
            # A third of the width each: height, width, aspect ratio.
            self.csize_embedder = TimestepEmbedder(width // 3, operations, **factory)
            self.ar_embedder = TimestepEmbedder(width // 3, operations, **factory)
        self.t_block = nn.Sequential(nn.SiLU(), operations.Linear(width, 6 * width, **factory))
        self.y_embedder = CaptionEmbedder(
            config.caption_channels, width, config.model_max_length, operations, **factory
        )
        self.blocks = nn.ModuleList(Block(width, config.num_heads, operations, **factory) for _ in range(config.depth))
        self.final_layer = FinalLayer(width, config.out_channels * patch**2, operations, **factory)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        c_size: Tensor | None = None,
        c_ar: Tensor | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Predicted noise [batch, in_channels, height, width].

        x: [batch, in_channels, height, width]; timesteps: [batch] 0..999; context: [batch, tokens,
        caption_channels]; attention_mask: [batch or 1, tokens], what of the context to look at. c_size: [batch or 1, 2]
        height and width in pixels, c_ar: [batch or 1, 1] their quotient, for alpha (missing: the latent's own). Blocks
        are replaceable as ("double_block", number) with img, txt and vec (see `comfy.models.dit`).
        """
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        rows, columns = -(-height // patch), -(-width // patch)
        positions = position_embedding(
            self.config.hidden_size, rows, columns, (height, width), self.config.pe_interpolation, x.device
        )

        h = self.x_embedder(pad_to_patch_size(x, (patch, patch))) + positions.to(x)
        t = self.t_embedder(timesteps, x.dtype)
        if self.csize_embedder is not None:
            t = t + self._told(x, c_size, c_ar)
        vec = self.t_block(t).unflatten(-1, (6, -1))
        txt = self.y_embedder(context)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]

        hooks = BlockHooks(transformer_options, len(self.blocks))
        for i, block in enumerate(self.blocks):

            def run(args: dict, block=block) -> dict:
                return {"img": block(args["img"], args["txt"], args["vec"], mask, hooks.options)}

            h = hooks.run("double_block", i, run, {"img": h, "txt": txt, "vec": vec})["img"]

        h = unpatchify(self.final_layer(h, t), rows, columns, patch, channels_last=True)
        return h[:, : self.config.in_channels, :height, :width]

    def _told(self, x: Tensor, c_size: Tensor | None, c_ar: Tensor | None) -> Tensor:
        """What alpha is told of the picture [batch or 1, width]: each number embedded, side by side."""
        if c_size is None:
            c_size = torch.tensor([[n * PIXELS_PER_CELL for n in x.shape[-2:]]], device=x.device)
        if c_ar is None:
            c_ar = c_size[:, :1] / c_size[:, 1:]
        rows = c_size.shape[0]
        size = self.csize_embedder(c_size.float().flatten(), x.dtype).reshape(rows, -1)
        return torch.cat([size, self.ar_embedder(c_ar.float().flatten(), x.dtype)], dim=1)
