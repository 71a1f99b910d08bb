"""Qwen-Image: a two-stream flow transformer throughout; also edits images it is shown.

Source: Wu et al. 2025, "Qwen-Image Technical Report" (MMDiT with positions that put the text on the image grid's
diagonal).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_output
from comfy.models.dit import (
    FREQUENCY_WIDTH,
    BlockHooks,
    FromDict,
    add_control,
    count_blocks,
    modulate,
    pad_to_patch_size,
    plain_norm,
    timestep_embedding,
)
from comfy.models.flux_layers import spread
from comfy.models.references import TIMESTEP_ZERO, place_references
from comfy.models.rope import apply_rope, grid_ids, rope_table, scaled_ids

NORM_EPS = 1e-6
TIME_FACTOR = 1000.0
ROPE_THETA = 10000.0


@dataclasses.dataclass(frozen=True)
class QwenImageConfig(FromDict):
    """Shape of the transformer. in_channels: of a patch; out_channels: of the latent. axes_dims_rope: channels of a
    head for the position axes (frame or image, row, column)."""

    in_channels: int = 64
    out_channels: int = 16
    patch_size: int = 2
    num_layers: int = 60
    num_attention_heads: int = 24
    attention_head_dim: int = 128
    joint_attention_dim: int = 3584
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> QwenImageConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size and the split
    of a head among the axes are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    width, in_channels = shape("img_in.weight")
    head = shape("transformer_blocks.0.attn.norm_q.weight")[0]
    values: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": shape("proj_out.weight")[0] // patch**2,
        "num_layers": count_blocks(sd, prefix + "transformer_blocks.{}.attn.to_q.weight"),
        "num_attention_heads": width // head,
        "attention_head_dim": head,
        "joint_attention_dim": shape("txt_in.weight")[1],
    }
    values.update(overrides)
    return QwenImageConfig(**values)


class TimestepMLP(nn.Module):
    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.linear_1 = operations.Linear(FREQUENCY_WIDTH, width, **factory)
        self.linear_2 = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeEmbedding(nn.Module):
    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.timestep_embedder = TimestepMLP(width, operations, **factory)

    def forward(self, timesteps: Tensor, dtype: torch.dtype) -> Tensor:
        sinusoids = timestep_embedding(timesteps, FREQUENCY_WIDTH, scale=TIME_FACTOR)
        return self.timestep_embedder(sinusoids.to(dtype))


class GELUProjection(nn.Module):
    def __init__(self, width: int, hidden: int, operations, **factory):
        super().__init__()
        self.proj = operations.Linear(width, hidden, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, width: int, operations, **factory):
        super().__init__()
        # Files number the output projection 2; the place of a dropout layer stays free.
        self.net = nn.Sequential(
            GELUProjection(width, 4 * width, operations, **factory),
            nn.Identity(),
            operations.Linear(4 * width, width, **factory),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class JointAttention(nn.Module):
    """One attention over text, then image; each with projections and norms of its own (files: `add_` the text)."""

    def __init__(self, config: QwenImageConfig, operations, **factory):
        super().__init__()
        width, head = config.width, config.attention_head_dim
        self.heads = config.num_attention_heads
        for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"):
            setattr(self, name, operations.Linear(width, width, **factory))
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            setattr(self, name, operations.RMSNorm(head, eps=NORM_EPS, **factory))
        self.to_out = nn.Sequential(operations.Linear(width, width, **factory))

    def forward(
        self, img: Tensor, txt: Tensor, pe: Tensor, mask: Tensor | None = None, options: dict | None = None
    ) -> tuple[Tensor, Tensor]:
        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        txt_q, txt_k = (
            self.norm_added_q(heads(self.add_q_proj(txt))),
            self.norm_added_k(heads(self.add_k_proj(txt))),
        )
        img_q, img_k = self.norm_q(heads(self.to_q(img))), self.norm_k(heads(self.to_k(img)))
        q = apply_rope(torch.cat([txt_q, img_q], dim=2), pe)
        k = apply_rope(torch.cat([txt_k, img_k], dim=2), pe)
        v = torch.cat([heads(self.add_v_proj(txt)), heads(self.to_v(img))], dim=2)
        out = optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True)
        out = attention_output(options, out, txt.shape[1])
        txt_out, img_out = out.split([txt.shape[1], img.shape[1]], dim=1)
        return self.to_out(img_out), self.to_add_out(txt_out)


class Block(nn.Module):
    def __init__(self, config: QwenImageConfig, operations, **factory):
        super().__init__()
        width = config.width
        for stream in ("img", "txt"):
            modulation = nn.Sequential(nn.SiLU(), operations.Linear(width, 6 * width, **factory))
            setattr(self, f"{stream}_mod", modulation)
            setattr(self, f"{stream}_mlp", FeedForward(width, operations, **factory))
        self.attn = JointAttention(config, operations, **factory)

    def forward(
        self,
        img: Tensor,
        txt: Tensor,
        vec: Tensor,
        pe: Tensor,
        mask: Tensor | None = None,
        tail: int = 0,
        options: dict | None = None,
    ) -> tuple[Tensor, Tensor]:
        """img [batch, m, width], txt [batch, n, width], vec [batch, s, width]; tail: see
        `comfy.models.flux_layers.spread`; options: of the patches in its attention."""
        img_mod = spread(self.img_mod(vec).chunk(6, dim=-1), img.shape[1], tail)
        txt_mod = self.txt_mod(vec[:, :1]).chunk(6, dim=-1)
        img_attention, txt_attention = self.attn(
            modulate(plain_norm(img), img_mod[0], img_mod[1]),
            modulate(plain_norm(txt), txt_mod[0], txt_mod[1]),
            pe,
            mask,
            options,
        )
        img = img + img_mod[2] * img_attention
        img = img + img_mod[5] * self.img_mlp(modulate(plain_norm(img), img_mod[3], img_mod[4]))
        txt = txt + txt_mod[2] * txt_attention
        txt = txt + txt_mod[5] * self.txt_mlp(modulate(plain_norm(txt), txt_mod[3], txt_mod[4]))
        return img, txt


class LastNorm(nn.Module):
    """Norm modulated by the timestep; scale comes first here."""

    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(width, 2 * width, **factory)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(vec)).chunk(2, dim=-1)
        return modulate(plain_norm(x), shift, scale)


class QwenImage(nn.Module):
    """Predicts the flow of a latent at a timestep, given text tokens and, for editing, reference latents."""

    def __init__(
        self,
        config: QwenImageConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width = config.width
        self.config = config
        self.dtype = dtype
        self.time_text_embed = TimeEmbedding(width, operations, **factory)
        self.txt_norm = operations.RMSNorm(config.joint_attention_dim, eps=NORM_EPS, **factory)
        self.img_in = operations.Linear(config.in_channels, width, **factory)
        self.txt_in = operations.Linear(config.joint_attention_dim, width, **factory)
        self.transformer_blocks = nn.ModuleList(Block(config, operations, **factory) for _ in range(config.num_layers))
        self.norm_out = LastNorm(width, operations, **factory)
        self.proj_out = operations.Linear(width, config.patch_size**2 * config.out_channels, **factory)

    def image_tokens(self, x: Tensor, place: tuple[float, int, int] = (0, 0, 0)) -> tuple[Tensor, Tensor]:
        """Patch vectors [batch, tokens, in_channels] and positions [1, tokens, 3] of latents [batch, c, frames,
        height, width]."""
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (1, patch, patch))
        batch, channels, frames, height, width = x.shape
        rows, columns = height // patch, width // patch
        x = x.reshape(batch, channels, frames, rows, patch, columns, patch).permute(0, 2, 3, 5, 1, 4, 6)
        index, row, column = place
        # Rows and columns count from the middle of the image.
        start = (index, row - rows // 2, column - columns // 2)
        ids = grid_ids(frames, rows, columns, start=start, device=x.device)
        return x.flatten(4).flatten(1, 3), ids

    def positions(self, img_ids: Tensor, words: int, size: Sequence[int]) -> Tensor:
        """The rope table of text, then image. size: height and width of the latent; the text goes on along the
        diagonal from where the image ends."""
        start = max(-(-n // self.config.patch_size) for n in size) // 2
        txt_ids = torch.arange(start, start + words, device=img_ids.device).reshape(1, words, 1).expand(-1, -1, 3)
        return rope_table(torch.cat([txt_ids.to(img_ids), img_ids], dim=1), self.config.axes_dims_rope, ROPE_THETA)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        attention_mask: Tensor | None = None,
        ref_latents: Sequence[Tensor] | None = None,
        ref_latents_method: str | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output of the shape of x.

        x: [batch, out_channels, frames, height, width], any size; timesteps: [batch] sigmas 0..1; context: [batch,
        tokens, joint_attention_dim]; attention_mask: [batch, tokens] of the context, 0 where not to look.
        ref_latents: images to look at, shaped as x; ref_latents_method: see `comfy.models.references` (`index` unless
        told otherwise). control: its list `input` holds one tensor [batch, image tokens, width] per block, added after
        it. Blocks are replaceable as ("double_block", number) with img, txt, vec and pe (see `comfy.models.dit`).
        """
        frames, height, width = x.shape[-3:]
        patch = self.config.patch_size
        rows, columns = -(-height // patch), -(-width // patch)
        img, img_ids = self.image_tokens(x)
        img_ids = scaled_ids(img_ids, transformer_options)
        image_tokens, tail = img.shape[1], 0
        if ref_latents:
            method = ref_latents_method or "index"
            places = place_references((height, width), [r.shape[-2:] for r in ref_latents], method, patch)
            refs = [self.image_tokens(r, place) for r, place in zip(ref_latents, places)]
            img = torch.cat([img, *(tokens.to(img).expand(img.shape[0], -1, -1) for tokens, _ in refs)], dim=1)
            img_ids = torch.cat([img_ids, *(ids for _, ids in refs)], dim=1)
            if method == TIMESTEP_ZERO:
                tail = img.shape[1] - image_tokens
        pe = self.positions(img_ids, context.shape[1], (height, width))

        vec = self.time_text_embed(timesteps, x.dtype).unsqueeze(1)
        if tail:
            vec = torch.cat([vec, self.time_text_embed(torch.zeros_like(timesteps), x.dtype)[:, None]], dim=1)
        img, txt = self.img_in(img), self.txt_in(self.txt_norm(context))
        mask = None
        if attention_mask is not None:
            mask = F.pad(attention_mask.bool(), (0, img.shape[1]), value=True)[:, None, None]

        hooks = BlockHooks(transformer_options, len(self.transformer_blocks), x)
        for i, block in enumerate(self.transformer_blocks):

            def run(args: dict, block=block) -> dict:
                img, txt = block(args["img"], args["txt"], args["vec"], args["pe"], mask, tail, hooks.options)
                return {"img": img, "txt": txt}

            out = hooks.run("double_block", i, run, {"img": img, "txt": txt, "vec": vec, "pe": pe})
            txt, img = out["txt"], add_control(out["img"], control, "input", i)

        img = self.proj_out(self.norm_out(img[:, :image_tokens], vec[:, :1]))
        img = img.reshape(img.shape[0], frames, rows, columns, -1, patch, patch).permute(0, 4, 1, 2, 5, 3, 6)
        return img.flatten(5).flatten(3, 4)[..., :height, :width]
