"""Lumina-Image 2.0 and Z-Image: one stream of text and image tokens, each refined by itself first.

Sources: Qin et al. 2025, "Lumina-Image 2.0" (unified Next-DiT); Z-Image Team 2025, "Z-Image" (the same transformer
with other modulation, full key heads and padding tokens).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_output
from comfy.models.dit import (
    BlockHooks,
    FromDict,
    TimestepEmbedder,
    count_blocks,
    pad_to_patch_size,
    patchify,
    plain_norm,
    unpatchify,
)
from comfy.models.rope import apply_rope, grid_ids, rope_table, scaled_ids

NORM_EPS = 1e-5
# Z-Image fills text and image up to a multiple of this with learned tokens.
PAD_MULTIPLE = 32


@dataclasses.dataclass(frozen=True)
class Lumina2Config(FromDict):
    """Shape of the transformer. axes_dims: channels of a head for the position axes (word or image, row, column).
    time_width, time_hidden: of the timestep's embedding. z_image: modulation straight from the embedding, timesteps
    embedded as thousands."""

    in_channels: int = 16
    patch_size: int = 2
    dim: int = 2304
    n_layers: int = 26
    n_refiner_layers: int = 2
    n_heads: int = 24
    n_kv_heads: int = 8
    ffn_dim: int = 9216
    cap_feat_dim: int = 2304
    axes_dims: tuple[int, ...] = (32, 32, 32)
    rope_theta: float = 10000.0
    time_width: int = 1024
    time_hidden: int = 1024
    z_image: bool = False
    pad_tokens: bool = False


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> Lumina2Config:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size and the split
    of a head among the axes are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    dim, patch_width = shape("x_embedder.weight")
    head = shape("layers.0.attention.q_norm.weight")[0]
    heads = dim // head
    z_image = f"{prefix}layers.0.adaLN_modulation.0.weight" in sd
    values: dict[str, Any] = {
        "in_channels": patch_width // patch**2,
        "dim": dim,
        "n_layers": count_blocks(sd, prefix + "layers.{}.attention.qkv.weight"),
        "n_refiner_layers": count_blocks(sd, prefix + "noise_refiner.{}.attention.qkv.weight"),
        "n_heads": heads,
        "n_kv_heads": (shape("layers.0.attention.qkv.weight")[0] // head - heads) // 2,
        "ffn_dim": shape("layers.0.feed_forward.w1.weight")[0],
        "cap_feat_dim": shape("cap_embedder.0.weight")[0],
        "axes_dims": (32, 48, 48) if z_image else (32, 32, 32),
        "rope_theta": 256.0 if z_image else 10000.0,
        "time_width": shape("t_embedder.mlp.2.weight")[0],
        "time_hidden": shape("t_embedder.mlp.0.weight")[0],
        "z_image": z_image,
        "pad_tokens": f"{prefix}cap_pad_token" in sd,
    }
    values.update(overrides)
    return Lumina2Config(**values)


class Attention(nn.Module):
    """Self-attention with normed, rotated queries and keys; several query heads may share one key head."""

    def __init__(self, config: Lumina2Config, operations, **factory):
        super().__init__()
        self.heads, self.kv_heads = config.n_heads, config.n_kv_heads
        head = config.dim // config.n_heads
        self.qkv = operations.Linear(config.dim, (self.heads + 2 * self.kv_heads) * head, bias=False, **factory)
        self.out = operations.Linear(config.dim, config.dim, bias=False, **factory)
        # No eps of their own: the dtype's smallest step.
        self.q_norm = operations.RMSNorm(head, **factory)
        self.k_norm = operations.RMSNorm(head, **factory)

    def forward(self, x: Tensor, pe: Tensor, options: dict | None = None, text: int = 0) -> Tensor:
        counts = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(x).unflatten(-1, (sum(counts), -1)).transpose(1, 2).split(counts, dim=1)
        q, k = apply_rope(self.q_norm(q), pe), apply_rope(self.k_norm(k), pe)
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        return self.out(attention_output(options, optimized_attention(q, k, v, self.heads, skip_reshape=True), text))


class FeedForward(nn.Module):
    """SiLU-gated MLP."""

    def __init__(self, config: Lumina2Config, operations, **factory):
        super().__init__()
        self.w1 = operations.Linear(config.dim, config.ffn_dim, bias=False, **factory)
        self.w2 = operations.Linear(config.ffn_dim, config.dim, bias=False, **factory)
        self.w3 = operations.Linear(config.dim, config.ffn_dim, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and MLP, each between two norms, its scale and tanh gate from the timestep (text refiners have
    neither)."""

    def __init__(self, config: Lumina2Config, operations, modulated: bool = True, **factory):
        super().__init__()
        self.attention = Attention(config, operations, **factory)
        self.feed_forward = FeedForward(config, operations, **factory)
        for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
            setattr(self, name, operations.RMSNorm(config.dim, eps=NORM_EPS, **factory))
        self.adaLN_modulation = None
        if modulated:
            projection = operations.Linear(config.time_width, 4 * config.dim, **factory)
            layers = [projection] if config.z_image else [nn.SiLU(), projection]
            self.adaLN_modulation = nn.Sequential(*layers)

    def forward(
        self, x: Tensor, pe: Tensor, t: Tensor | None = None, options: dict | None = None, text: int = 0
    ) -> Tensor:
        """x [batch, tokens, dim], t [batch, 1, time_width]; options: of the patches in its attention, whose first
        `text` tokens are words."""
        if self.adaLN_modulation is None:
            x = x + self.attention_norm2(self.attention(self.attention_norm1(x), pe))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        attn_scale, attn_gate, ffn_scale, ffn_gate = self.adaLN_modulation(t).chunk(4, dim=-1)
        h = self.attention_norm2(self.attention(self.attention_norm1(x) * (1 + attn_scale), pe, options, text))
        x = x + attn_gate.tanh() * h
        h = self.ffn_norm2(self.feed_forward(self.ffn_norm1(x) * (1 + ffn_scale)))
        return x + ffn_gate.tanh() * h


class FinalLayer(nn.Module):
    def __init__(self, config: Lumina2Config, operations, **factory):
        super().__init__()
        width = config.patch_size**2 * config.in_channels
        self.linear = operations.Linear(config.dim, width, **factory)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), operations.Linear(config.time_width, config.dim, **factory))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.linear(plain_norm(x) * (1 + self.adaLN_modulation(t)))


class Lumina2(nn.Module):
    """Predicts the flow of a latent at a timestep, given text tokens."""

    def __init__(
        self,
        config: Lumina2Config,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.dtype = dtype
        self.time_scale = 1000.0 if config.z_image else 1.0
        self.x_embedder = operations.Linear(config.patch_size**2 * config.in_channels, config.dim, **factory)
        self.t_embedder = TimestepEmbedder(config.time_hidden, operations, out=config.time_width, **factory)
        self.cap_embedder = nn.Sequential(
            operations.RMSNorm(config.cap_feat_dim, eps=NORM_EPS, **factory),
            operations.Linear(config.cap_feat_dim, config.dim, **factory),
        )

        def blocks(count: int, modulated: bool = True) -> nn.ModuleList:
            return nn.ModuleList(Block(config, operations, modulated, **factory) for _ in range(count))

        self.noise_refiner = blocks(config.n_refiner_layers)
        self.context_refiner = blocks(config.n_refiner_layers, modulated=False)
        self.layers = blocks(config.n_layers)
        self.final_layer = FinalLayer(config, operations, **factory)
        self.x_pad_token = self.cap_pad_token = None
        if config.pad_tokens:
            self.x_pad_token = nn.Parameter(torch.empty(1, config.dim, **factory), requires_grad=False)
            self.cap_pad_token = nn.Parameter(torch.empty(1, config.dim, **factory), requires_grad=False)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, in_channels, height, width], any size.

        x: [batch, in_channels, height, width]; timesteps: [batch] sigmas 0..1; context: [batch, tokens,
        cap_feat_dim], all of which are looked at (an `attention_mask` has no effect). The blocks after the refiners
        are replaceable as ("double_block", number) with img (text and image), vec and pe (see `comfy.models.dit`).
        """
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (patch, patch))
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch

        # The model counts time from noise (0) to image (1), and its velocity points that way.
        t = self.t_embedder((1.0 - timesteps) * self.time_scale, x.dtype).unsqueeze(1)
        text = fill(self.cap_embedder(context), self.cap_pad_token)
        words = text.shape[1]
        text_ids = torch.zeros(1, words, 3, device=x.device)
        text_ids[..., 0] = torch.arange(1, words + 1, device=x.device)
        image = fill(self.x_embedder(patchify(x, patch, channels_last=True)), self.x_pad_token)
        image_ids = grid_ids(1, rows, columns, start=(words + 1, 0, 0), device=x.device)
        image_ids = scaled_ids(image_ids, transformer_options)
        image_ids = F.pad(image_ids, (0, 0, 0, image.shape[1] - image_ids.shape[1]))
        pe = rope_table(torch.cat([text_ids, image_ids], dim=1), self.config.axes_dims, self.config.rope_theta)

        for block in self.context_refiner:
            text = block(text, pe[:, :, :words])
        for block in self.noise_refiner:
            image = block(image, pe[:, :, words:], t)

        h = torch.cat([text, image], dim=1)
        hooks = BlockHooks(transformer_options, len(self.layers))
        for i, block in enumerate(self.layers):

            def run(args: dict, block=block) -> dict:
                return {"img": block(args["img"], args["pe"], args["vec"], hooks.options, words)}

            h = hooks.run("double_block", i, run, {"img": h, "vec": t, "pe": pe})["img"]

        h = self.final_layer(h[:, words : words + rows * columns], t)
        return -unpatchify(h, rows, columns, patch, channels_last=True)[:, :, :height, :width]


def fill(tokens: Tensor, pad_token: Tensor | None) -> Tensor:
    """`tokens` [batch, n, dim] followed by the pad token up to a multiple of PAD_MULTIPLE."""
    missing = -tokens.shape[1] % PAD_MULTIPLE
    if pad_token is None or missing == 0:
        return tokens
    return torch.cat([tokens, pad_token.to(tokens).expand(tokens.shape[0], missing, -1)], dim=1)
