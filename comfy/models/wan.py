"""Wan 2.1 and 2.2: video diffusion transformers for text, pictures and controls.

Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models"; Wan 2.2's published code (a
timestep of its own for each frame); VideoX-Fun (Alibaba PAI; a reference frame before the first one, camera paths).
All three are published under Apache-2.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.attention_patches import attention_inputs, attention_output, cross_attention_output
from comfy.models.dit import (
    BlockHooks,
    FromDict,
    count_blocks,
    modulate,
    pad_to_patch_size,
    plain_norm,
    timestep_embedding,
)
from comfy.models.rope import apply_rope, grid_ids, rope_table, scaled_ids

ROPE_THETA = 10000.0
HEAD_WIDTH = 128
TEXT_TO_VIDEO, IMAGE_TO_VIDEO = "t2v", "i2v"


@dataclasses.dataclass(frozen=True)
class WanConfig(FromDict):
    """Shape of the transformer.

    in_dim: channels of the latent and of what goes beside it. image_dim: width of CLIP's tokens of pictures that it
    looks at, too (0: looks at none); image_places: how many of them have a learned place (0: none has).
    reference_channels: of a picture's latent that goes before the first frame (0: takes none). model_type: what files
    of that shape are called.
    """

    model_type: str = TEXT_TO_VIDEO
    in_dim: int = 16
    out_dim: int = 16
    dim: int = 5120
    ffn_dim: int = 13824
    freq_dim: int = 256
    text_dim: int = 4096
    num_heads: int = 40
    num_layers: int = 40
    patch_size: tuple[int, ...] = (1, 2, 2)
    eps: float = 1e-6
    image_dim: int = 0
    image_places: int = 0
    reference_channels: int = 0

    @property
    def axes(self) -> tuple[int, int, int]:
        """Channels of a head for frame, row and column."""
        head = self.dim // self.num_heads
        side = 2 * (head // 6)
        return head - 2 * side, side, side


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> WanConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (heads are taken to be
    128 wide).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    dim, in_dim, *patch = shape("patch_embedding.weight")
    values: dict[str, Any] = {
        "in_dim": in_dim,
        "out_dim": shape("head.head.weight")[0] // (patch[0] * patch[1] * patch[2]),
        "dim": dim,
        "ffn_dim": shape("blocks.0.ffn.0.weight")[0],
        "freq_dim": shape("time_embedding.0.weight")[1],
        "text_dim": shape("text_embedding.0.weight")[1],
        "num_heads": max(1, dim // HEAD_WIDTH),
        "num_layers": count_blocks(sd, prefix + "blocks.{}.self_attn.q.weight"),
        "patch_size": tuple(patch),
    }
    if prefix + "img_emb.proj.0.weight" in sd:
        values |= {"model_type": IMAGE_TO_VIDEO, "image_dim": shape("img_emb.proj.0.weight")[0]}
    if prefix + "img_emb.emb_pos" in sd:
        values["image_places"] = shape("img_emb.emb_pos")[1]
    if prefix + "ref_conv.weight" in sd:
        values["reference_channels"] = shape("ref_conv.weight")[1]
    values.update(overrides)
    return WanConfig(**values)


class SelfAttention(nn.Module):
    """Attention of all tokens of the video to one another. Queries and keys are normed over their full width."""

    def __init__(self, config: WanConfig, operations, **factory):
        super().__init__()
        self.dim, self.num_heads, self.eps = config.dim, config.num_heads, config.eps
        self.head_dim = config.dim // config.num_heads
        for name in ("q", "k", "v", "o"):
            setattr(self, name, operations.Linear(config.dim, config.dim, **factory))
        for name in ("norm_q", "norm_k"):
            setattr(self, name, operations.RMSNorm(config.dim, eps=config.eps, **factory))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, pe: Tensor, options: dict | None = None) -> Tensor:
        """x [batch, tokens, dim]; pe: their positions; options: of the patches in the attention."""
        q, k, v = (self._by_head(t) for t in (self.norm_q(self.q(x)), self.norm_k(self.k(x)), self.v(x)))
        q, k, v, pe, mask = attention_inputs(options, q, k, v, pe, None, 0)
        q, k = apply_rope(q, pe), apply_rope(k, pe)
        out = optimized_attention(q, k, v, self.num_heads, mask=mask, skip_reshape=True)
        return self.o(attention_output(options, out, 0))


class T2VCrossAttention(SelfAttention):
    """Attention of the video to the text."""

    def forward(
        self, x: Tensor, context: Tensor, context_img_len: int = 0, transformer_options: dict | None = None
    ) -> Tensor:
        """x [batch, tokens, dim]; context [batch, n, dim]: `context_img_len` tokens of pictures, then the text."""
        return self.o(cross_attention_output(transformer_options, self._to_text(x, context[:, context_img_len:])[1]))

    def _to_text(self, x: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """The queries, and what they find in the text."""
        q = self.norm_q(self.q(x))
        return q, optimized_attention(q, self.norm_k(self.k(text)), self.v(text), self.num_heads)


class I2VCrossAttention(T2VCrossAttention):
    """Attention of the video to the text and to the tokens of pictures, by projections of their own; the two results
    are added."""

    def __init__(self, config: WanConfig, operations, **factory):
        super().__init__(config, operations, **factory)
        for name in ("k_img", "v_img"):
            setattr(self, name, operations.Linear(config.dim, config.dim, **factory))
        self.norm_k_img = operations.RMSNorm(config.dim, eps=config.eps, **factory)

    def forward(
        self, x: Tensor, context: Tensor, context_img_len: int = 0, transformer_options: dict | None = None
    ) -> Tensor:
        q, out = self._to_text(x, context[:, context_img_len:])
        if context_img_len:
            seen = context[:, :context_img_len]
            out = out + optimized_attention(q, self.norm_k_img(self.k_img(seen)), self.v_img(seen), self.num_heads)
        return self.o(cross_attention_output(transformer_options, out))


def _per_token(vectors: Tensor, tokens: int) -> Tensor:
    """Vectors of frames [batch, frames, width] for `tokens` tokens; one for all is left as it is."""
    frames = vectors.shape[1]
    if frames == 1 or frames == tokens:
        return vectors
    return vectors.repeat_interleave(-(-tokens // frames), dim=1)[:, :tokens]


class Block(nn.Module):
    def __init__(self, config: WanConfig, operations, **factory):
        super().__init__()
        self.eps = config.eps
        self.self_attn = SelfAttention(config, operations, **factory)
        cross_attention = I2VCrossAttention if config.image_dim > 0 else T2VCrossAttention
        self.cross_attn = cross_attention(config, operations, **factory)
        self.norm3 = operations.LayerNorm(config.dim, eps=config.eps, **factory)
        self.ffn = nn.Sequential(
            operations.Linear(config.dim, config.ffn_dim, **factory),
            nn.GELU(approximate="tanh"),
            operations.Linear(config.ffn_dim, config.dim, **factory),
        )
        self.modulation = nn.Parameter(torch.empty(1, 6, config.dim, **factory), requires_grad=False)

    def forward(
        self,
        x: Tensor,
        vec: Tensor,
        pe: Tensor,
        context: Tensor,
        pictures: int = 0,
        options: dict | None = None,
    ) -> Tensor:
        """x [batch, tokens, dim]; vec [batch, 1 or frames, 6, dim]; context: `pictures` tokens of pictures, then the
        text."""
        mod = [_per_token(v, x.shape[1]) for v in (self.modulation.to(vec) + vec).unbind(2)]
        x = x + mod[2] * self.self_attn(modulate(plain_norm(x, self.eps), mod[0], mod[1]), pe, options)
        # By name: packs put functions of their own in its place.
        x = x + self.cross_attn(self.norm3(x), context, context_img_len=pictures, transformer_options=options)
        return x + mod[5] * self.ffn(modulate(plain_norm(x, self.eps), mod[3], mod[4]))


class Head(nn.Module):
    """The last norm, modulated by the timestep, and the projection to patches."""

    def __init__(self, config: WanConfig, operations, **factory):
        super().__init__()
        self.eps = config.eps
        patch = config.patch_size
        self.head = operations.Linear(config.dim, patch[0] * patch[1] * patch[2] * config.out_dim, **factory)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.dim, **factory), requires_grad=False)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        """x [batch, tokens, dim]; vec [batch, 1 or frames, dim]."""
        mod = (self.modulation.to(vec) + vec.unsqueeze(2)).unbind(2)
        shift, scale = (_per_token(v, x.shape[1]) for v in mod)
        return self.head(modulate(plain_norm(x, self.eps), shift, scale))


class PictureProjection(nn.Module):
    """CLIP's tokens of pictures, brought to the width of the text. Models of a first and a last frame have a place
    for the tokens of both."""

    def __init__(self, config: WanConfig, operations, **factory):
        super().__init__()
        width = config.image_dim
        self.proj = nn.Sequential(
            operations.LayerNorm(width, **factory),
            operations.Linear(width, width, **factory),
            nn.GELU(),
            operations.Linear(width, config.dim, **factory),
            operations.LayerNorm(config.dim, **factory),
        )
        self.emb_pos = None
        if config.image_places:
            places = torch.empty(1, config.image_places, width, **factory)
            self.emb_pos = nn.Parameter(places, requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, n, image_dim] of one picture, or of the first and then the last one."""
        if self.emb_pos is not None:
            count = min(tokens.shape[1], self.emb_pos.shape[1])
            placed = tokens[:, :count] + self.emb_pos[:, :count].to(tokens)
            tokens = torch.cat([placed, tokens[:, count:]], dim=1)
        return self.proj(tokens)


class Wan(nn.Module):
    """Predicts the flow of a video's latent at a timestep, given text tokens."""

    def __init__(
        self,
        config: WanConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        dim, patch = config.dim, config.patch_size
        self.config = config
        self.dtype = dtype
        # Always in float32, whatever the rest computes in: half precision of the latent's values would be seen.
        self.patch_embedding = comfy.ops.manual_cast.Conv3d(
            config.in_dim, dim, kernel_size=patch, stride=patch, **factory
        )
        self.text_embedding = nn.Sequential(
            operations.Linear(config.text_dim, dim, **factory),
            nn.GELU(approximate="tanh"),
            operations.Linear(dim, dim, **factory),
        )
        self.time_embedding = nn.Sequential(
            operations.Linear(config.freq_dim, dim, **factory),
            nn.SiLU(),
            operations.Linear(dim, dim, **factory),
        )
        self.time_projection = nn.Sequential(nn.SiLU(), operations.Linear(dim, 6 * dim, **factory))
        self.blocks = nn.ModuleList(Block(config, operations, **factory) for _ in range(config.num_layers))
        self.head = Head(config, operations, **factory)
        if config.image_dim:
            self.img_emb = PictureProjection(config, operations, **factory)
        self.ref_conv = None
        if config.reference_channels:
            self.ref_conv = operations.Conv2d(
                config.reference_channels, dim, kernel_size=patch[1:], stride=patch[1:], **factory
            )

    def positions(self, frames: int, rows: int, columns: int, device: Any, options: dict | None = None) -> Tensor:
        """The rope table of a video's tokens, frame by frame."""
        ids = scaled_ids(grid_ids(frames, rows, columns, device=device), options)
        return rope_table(ids, self.config.axes, ROPE_THETA)

    def embedded_timesteps(self, timesteps: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For the head [batch, 1 or frames, dim] and for the blocks [batch, 1 or frames, 6, dim]."""
        sinusoids = timestep_embedding(timesteps.flatten(), self.config.freq_dim)
        vec = self.time_embedding(sinusoids.to(dtype)).reshape(timesteps.shape[0], -1, self.config.dim)
        return vec, self.time_projection(vec).unflatten(-1, (6, -1))

    def embedded_context(self, context: Tensor, clip_fea: Tensor | None) -> tuple[Tensor, int]:
        """Tokens of pictures, if there are any, then the text's; and how many of the former."""
        text = self.text_embedding(context)
        if clip_fea is None or not self.config.image_dim:
            return text, 0
        pictures = self.img_emb(clip_fea)
        return torch.cat([pictures, text], dim=1), pictures.shape[1]

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        clip_fea: Tensor | None = None,
        time_dim_concat: Tensor | None = None,
        reference_latent: Tensor | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_dim, frames, height, width].

        x: [batch, in_dim, frames, height, width], any size; timesteps: [batch], or [batch, frames]; context: [batch,
        n, text_dim]. clip_fea: [batch, m, image_dim], CLIP's tokens of pictures. time_dim_concat: [batch, in_dim, f,
        height, width], frames to look at behind the video's. reference_latent: [batch, reference_channels, height,
        width], a picture to look at before them. Blocks are replaceable as ("double_block", number) with img, txt,
        vec and pe (see `comfy.models.dit`); their output is img.
        """
        patch = self.config.patch_size
        shape = x.shape[2:]
        x = pad_to_patch_size(x, patch)
        frames, rows, columns = (n // p for n, p in zip(x.shape[2:], patch))
        video = x
        if time_dim_concat is not None:
            more = pad_to_patch_size(time_dim_concat.to(x), patch)
            video = torch.cat([x, more.expand(x.shape[0], *more.shape[1:])], dim=2)
        tokens = self.embedded_video(video, **kwargs)
        shown = tokens.shape[2]
        img = tokens.flatten(2).transpose(1, 2)
        before = 0
        if self.ref_conv is not None and reference_latent is not None:
            ref = self.ref_conv(pad_to_patch_size(reference_latent.to(x), patch[1:])).flatten(2).transpose(1, 2)
            img = torch.cat([ref.expand(img.shape[0], -1, -1), img], dim=1)
            before, shown = ref.shape[1], shown + 1
        pe = self.positions(shown, rows, columns, x.device, transformer_options)
        vec, block_vec = self.embedded_timesteps(timesteps, x.dtype)
        txt, pictures = self.embedded_context(context, clip_fea)

        hooks = BlockHooks(transformer_options, len(self.blocks), x)
        img = self.run_blocks(img, txt, block_vec, pe, pictures, hooks, **kwargs)

        img = self.head(img, vec)[:, before : before + frames * rows * columns]
        img = img.unflatten(1, (frames, rows, columns)).unflatten(-1, (*patch, self.config.out_dim))
        img = img.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6).flatten(4, 5).flatten(2, 3)
        return img[:, :, : shape[0], : shape[1], : shape[2]]

    def embedded_video(self, x: Tensor, **kwargs: Any) -> Tensor:
        """The tokens of a padded video on their grid [batch, dim, frames, rows, columns]."""
        return self.patch_embedding(x.float()).to(x.dtype)

    def run_blocks(
        self,
        img: Tensor,
        txt: Tensor,
        vec: Tensor,
        pe: Tensor,
        pictures: int,
        hooks: BlockHooks,
        after_block: Callable[[int, Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The tokens of the video after all blocks; `after_block` gets the number of each and what came out of it."""
        for i, block in enumerate(self.blocks):

            def run(args: dict, block=block) -> dict:
                out = block(args["img"], args["vec"], args["pe"], args["txt"], pictures, hooks.options)
                return {"img": out}

            img = hooks.run("double_block", i, run, {"img": img, "txt": txt, "vec": vec, "pe": pe})["img"]
            if after_block is not None:
                img = after_block(i, img)
        return img
