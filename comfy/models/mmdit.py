"""The multimodal diffusion transformer of Stable Diffusion 3 (medium) and 3.5 (medium, large).

Source: Esser et al. 2024, "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", figure 2:
text and image tokens have weights of their own and meet in one attention. 3.5 adds RMS norms on queries and keys;
3.5 medium adds a second attention among the image tokens in its first blocks ("MMDiT-X").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_output
from comfy.models.dit import (
    BlockHooks,
    FromDict,
    Mlp,
    TimestepEmbedder,
    VectorEmbedder,
    add_control,
    count_blocks,
    modulate,
    pad_to_patch_size,
    plain_norm,
    unpatchify,
)

HEAD_WIDTH = 64
QK_NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class MMDiTConfig(FromDict):
    """Shape of the transformer; heads are 64 wide and, in all published models, as many as there are blocks.

    pos_embed_max_size: side, in patches, of the square table of position embeddings. x_block_self_attn_layers:
    blocks with a second attention among the image tokens.
    """

    in_channels: int = 16
    out_channels: int = 16
    patch_size: int = 2
    depth: int = 24
    hidden_size: int = 1536
    context_dim: int = 4096
    adm_in_channels: int | None = 2048
    pos_embed_max_size: int = 192
    qk_norm: str | None = None
    x_block_self_attn_layers: tuple[int, ...] = ()

    @property
    def num_heads(self) -> int:
        return self.hidden_size // HEAD_WIDTH


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> MMDiTConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win.

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    hidden_size, in_channels, patch_size, _ = shape("x_embedder.proj.weight")
    depth = count_blocks(sd, prefix + "joint_blocks.{}.context_block.attn.qkv.weight")
    second = [i for i in range(depth) if f"{prefix}joint_blocks.{i}.x_block.attn2.qkv.weight" in sd]
    has_y = f"{prefix}y_embedder.mlp.0.weight" in sd
    values: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": shape("final_layer.linear.weight")[0] // patch_size**2,
        "patch_size": patch_size,
        "depth": depth,
        "hidden_size": hidden_size,
        "context_dim": shape("context_embedder.weight")[1],
        "adm_in_channels": shape("y_embedder.mlp.0.weight")[1] if has_y else None,
        "pos_embed_max_size": round(shape("pos_embed")[1] ** 0.5),
        "qk_norm": "rms" if f"{prefix}joint_blocks.0.context_block.attn.ln_k.weight" in sd else None,
        "x_block_self_attn_layers": tuple(second),
    }
    values.update(overrides)
    return MMDiTConfig(**values)


class PatchEmbed(nn.Module):
    """Patches of the latent to tokens [batch, rows * columns, width]."""

    def __init__(self, patch_size: int, in_channels: int, width: int, operations, **factory):
        super().__init__()
        self.patch_size = patch_size
        self.proj = operations.Conv2d(in_channels, width, patch_size, stride=patch_size, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_to_patch_size(x, (self.patch_size, self.patch_size))
        return self.proj(x).flatten(2).transpose(1, 2)


class SelfAttention(nn.Module):
    """Projections around an attention that the block shares between its streams."""

    def __init__(self, width: int, qk_norm: str | None, operations, has_output: bool = True, **factory):
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.qkv = operations.Linear(width, 3 * width, **factory)
        if has_output:
            self.proj = operations.Linear(width, width, **factory)
        self.ln_q = self.ln_k = None
        if qk_norm == "rms":
            self.ln_q = operations.RMSNorm(HEAD_WIDTH, eps=QK_NORM_EPS, **factory)
            self.ln_k = operations.RMSNorm(HEAD_WIDTH, eps=QK_NORM_EPS, **factory)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, tokens, 64]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        if self.ln_q is not None:
            q, k = self.ln_q(q), self.ln_k(k)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(optimized_attention(*self.project(x), self.heads, skip_reshape=True))


class DismantledBlock(nn.Module):
    """One stream's half of a joint block: before and after the shared attention.

    The last text block only serves the attention (`pre_only`): nothing of it goes on.
    """

    def __init__(self, width: int, qk_norm: str | None, operations, pre_only: bool = False, second=False, **factory):
        super().__init__()
        self.attn = SelfAttention(width, qk_norm, operations, has_output=not pre_only, **factory)
        self.attn2 = SelfAttention(width, qk_norm, operations, **factory) if second else None
        self.mlp = None if pre_only else Mlp(width, 4 * width, operations, **factory)
        self.vectors = 2 if pre_only else 9 if second else 6
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), operations.Linear(width, self.vectors * width, **factory))

    def before(self, x: Tensor, c: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The normed and modulated input, and the modulation vectors: shift, scale, gate of the attention, of the
        MLP, of the second attention."""
        mod = list(self.adaLN_modulation(c).unsqueeze(1).chunk(self.vectors, dim=-1))
        return plain_norm(x), mod

    def after(self, x: Tensor, normed: Tensor, attention: Tensor, mod: list[Tensor]) -> Tensor:
        h = x + mod[2] * self.attn.proj(attention)
        if self.attn2 is not None:
            h = h + mod[8] * self.attn2(modulate(normed, mod[6], mod[7]))
        return h + mod[5] * self.mlp(modulate(plain_norm(h), mod[3], mod[4]))


class JointBlock(nn.Module):
    def __init__(self, width: int, qk_norm: str | None, operations, last: bool, second: bool, **factory):
        super().__init__()
        self.context_block = DismantledBlock(width, qk_norm, operations, pre_only=last, **factory)
        self.x_block = DismantledBlock(width, qk_norm, operations, second=second, **factory)

    def forward(
        self, context: Tensor, x: Tensor, c: Tensor, options: dict | None = None
    ) -> tuple[Tensor | None, Tensor]:
        """Text [batch, n, width] and image tokens [batch, m, width] under the conditioning c [batch, width]; options:
        of the patches in its attention."""
        context_normed, context_mod = self.context_block.before(context, c)
        x_normed, x_mod = self.x_block.before(x, c)
        streams = (
            self.context_block.attn.project(modulate(context_normed, context_mod[0], context_mod[1])),
            self.x_block.attn.project(modulate(x_normed, x_mod[0], x_mod[1])),
        )
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(*streams))
        attention = optimized_attention(q, k, v, self.x_block.attn.heads, skip_reshape=True)
        text = context.shape[1]
        attention = attention_output(options, attention, text)
        x = self.x_block.after(x, x_normed, attention[:, text:], x_mod)
        if self.context_block.mlp is None:
            return None, x
        return self.context_block.after(context, context_normed, attention[:, :text], context_mod), x


class FinalLayer(nn.Module):
    """Modulated norm, then the pixels of each patch."""

    def __init__(self, width: int, out_width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(width, out_width, **factory)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), operations.Linear(width, 2 * width, **factory))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c).unsqueeze(1).chunk(2, dim=-1)
        return self.linear(modulate(plain_norm(x), shift, scale))


class MMDiT(nn.Module):
    """Predicts the flow of a latent at a timestep, given text tokens and a pooled text vector."""

    def __init__(
        self,
        config: MMDiTConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.config = config
        self.dtype = dtype
        self.x_embedder = PatchEmbed(config.patch_size, config.in_channels, width, operations, **factory)
        self.pos_embed = nn.Parameter(
            torch.empty(1, config.pos_embed_max_size**2, width, **factory), requires_grad=False
        )
        self.t_embedder = TimestepEmbedder(width, operations, **factory)
        self.y_embedder = None
        if config.adm_in_channels is not None:
            self.y_embedder = VectorEmbedder(config.adm_in_channels, width, operations, **factory)
        self.context_embedder = operations.Linear(config.context_dim, width, **factory)
        self.joint_blocks = nn.ModuleList(
            JointBlock(
                width,
                config.qk_norm,
                operations,
                last=i == config.depth - 1,
                second=i in config.x_block_self_attn_layers,
                **factory,
            )
            for i in range(config.depth)
        )
        self.final_layer = FinalLayer(width, config.out_channels * config.patch_size**2, operations, **factory)

    def position_embedding(self, rows: int, columns: int) -> Tensor:
        """The middle [1, rows * columns, width] of the table; beyond its edges the outermost values repeat."""
        side = self.config.pos_embed_max_size
        table = self.pos_embed.unflatten(1, (side, side))
        for axis, size in ((1, rows), (2, columns)):
            start = (side - size) // 2
            if start >= 0:
                table = table.narrow(axis, start, size)
            else:
                places = torch.arange(start, start + size, device=table.device).clamp(0, side - 1)
                table = table.index_select(axis, places)
        return table.flatten(1, 2)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width], any size.

        x: [batch, in_channels, height, width]; timesteps: [batch], 1000 * sigma; context: [batch, tokens,
        context_dim]; y: [batch, adm_in_channels]. control: its list `output` holds one tensor [batch, image
        tokens, width] per block, added after it. Blocks are replaceable as ("double_block", number) with img, txt
        and vec (see `comfy.models.dit`).
        """
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        rows, columns = -(-height // patch), -(-width // patch)

        tokens = self.x_embedder(x)
        tokens = tokens + self.position_embedding(rows, columns).to(device=x.device, dtype=x.dtype)
        c = self.t_embedder(timesteps, x.dtype)
        if self.y_embedder is not None and y is not None:
            c = c + self.y_embedder(y)
        context = self.context_embedder(context)

        hooks = BlockHooks(transformer_options, len(self.joint_blocks))
        for i, block in enumerate(self.joint_blocks):

            def run(args: dict, block=block) -> dict:
                txt, img = block(args["txt"], args["img"], args["vec"], hooks.options)
                return {"txt": txt, "img": img}

            out = hooks.run("double_block", i, run, {"img": tokens, "txt": context, "vec": c})
            context, tokens = out["txt"], add_control(out["img"], control, "output", i)

        tokens = self.final_layer(tokens, c)
        return unpatchify(tokens, rows, columns, patch, channels_last=True)[:, :, :height, :width]
