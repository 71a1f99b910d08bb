"""The rectified flow transformer of FLUX.1 (dev, schnell, fill, canny, depth, kontext).

Sources: Black Forest Labs 2024, https://github.com/black-forest-labs/flux (Apache-2.0); Kontext: Labs et al. 2025,
"FLUX.1 Kontext" (reference images as further tokens).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention_patches import block_inputs
from comfy.models.dit import FREQUENCY_WIDTH, FromDict, count_blocks, pad_to_patch_size, patchify, unpatchify
from comfy.models.flux_layers import (
    BlockShape,
    DoubleStreamBlock,
    LastLayer,
    MLPEmbedder,
    SingleStreamBlock,
    head_width,
    run_blocks,
    widened_mask,
)
from comfy.models.references import TIMESTEP_ZERO, place_references
from comfy.models.rope import grid_ids, rope_table, scaled_ids


@dataclasses.dataclass(frozen=True)
class FluxConfig(FromDict):
    """Shape of the transformer. in_channels: of the latent together with what is concatenated to it, before
    patches are formed. axes_dim: channels of a head for the three position axes (index, row, column). vec_in_dim:
    width of the pooled text vector, None without one."""

    in_channels: int = 16
    out_channels: int = 16
    patch_size: int = 2
    hidden_size: int = 3072
    num_heads: int = 24
    depth: int = 19
    depth_single_blocks: int = 38
    mlp_ratio: float = 4.0
    context_in_dim: int = 4096
    vec_in_dim: int | None = 768
    axes_dim: tuple[int, ...] = (16, 56, 56)
    theta: float = 10000.0
    qkv_bias: bool = True
    guidance_embed: bool = True


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> FluxConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size and the
    split of a head among the axes are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    hidden_size = shape("img_in.weight")[0]
    has_vector = f"{prefix}vector_in.in_layer.weight" in sd
    values: dict[str, Any] = {
        "in_channels": shape("img_in.weight")[1] // patch**2,
        "out_channels": shape("final_layer.linear.weight")[0] // patch**2,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // head_width(sd, prefix),
        "depth": count_blocks(sd, prefix + "double_blocks.{}.img_attn.qkv.weight"),
        "depth_single_blocks": count_blocks(sd, prefix + "single_blocks.{}.linear1.weight"),
        "mlp_ratio": shape("double_blocks.0.img_mlp.0.weight")[0] / hidden_size,
        "context_in_dim": shape("txt_in.weight")[1],
        "vec_in_dim": shape("vector_in.in_layer.weight")[1] if has_vector else None,
        "qkv_bias": f"{prefix}double_blocks.0.img_attn.qkv.bias" in sd,
        "guidance_embed": f"{prefix}guidance_in.in_layer.weight" in sd,
    }
    values.update(overrides)
    return FluxConfig(**values)


class Flux(nn.Module):
    """Predicts the flow of a latent at a timestep, given T5 tokens, a pooled CLIP vector and a guidance strength."""

    # How references are placed where the conditioning does not tell.
    default_ref_method = "offset"

    def __init__(
        self,
        config: FluxConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        width, patch_area = config.hidden_size, config.patch_size**2
        self.config = config
        self.dtype = dtype
        self.img_in = operations.Linear(config.in_channels * patch_area, width, **factory)
        self.txt_in = operations.Linear(config.context_in_dim, width, **factory)
        self.time_in = MLPEmbedder(FREQUENCY_WIDTH, width, operations, **factory)
        self.vector_in = self.guidance_in = None
        if config.vec_in_dim is not None:
            self.vector_in = MLPEmbedder(config.vec_in_dim, width, operations, **factory)
        if config.guidance_embed:
            self.guidance_in = MLPEmbedder(FREQUENCY_WIDTH, width, operations, **factory)
        shape = BlockShape(width, config.num_heads, int(width * config.mlp_ratio), qkv_bias=config.qkv_bias)
        self.double_blocks = nn.ModuleList(DoubleStreamBlock(shape, operations, **factory) for _ in range(config.depth))
        self.single_blocks = nn.ModuleList(
            SingleStreamBlock(shape, operations, **factory) for _ in range(config.depth_single_blocks)
        )
        self.final_layer = LastLayer(width, config.out_channels * patch_area, operations, **factory)

    def image_tokens(self, x: Tensor, place: tuple[float, int, int] = (0, 0, 0)) -> tuple[Tensor, Tensor]:
        """Patch vectors [batch, tokens, c] of an image and their positions [1, tokens, 3]; `place`: index of the
        image, then row and column of its first patch."""
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (patch, patch))
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch
        return patchify(x, patch), grid_ids(1, rows, columns, start=place, device=x.device)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        guidance: Tensor | None = None,
        ref_latents: Sequence[Tensor] | None = None,
        ref_latents_method: str | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width], any size.

        x: [batch, in_channels, height, width]; timesteps: [batch] sigmas 0..1; context: [batch, tokens,
        context_in_dim]; y: [batch, vec_in_dim] (missing: zeros); guidance: [batch], unused without its embedding.
        ref_latents: images to look at, each [batch, in_channels, any, any]; ref_latents_method: see
        `comfy.models.references`. control: lists `input` (two-stream blocks) and `output` (one-stream blocks) of
        tensors [batch, image tokens, width], added after the block of the same number. attention_mask: added to
        the attention scores of text, then image. Blocks are replaceable as ("double_block", number) with img, txt,
        vec, pe and ("single_block", number) with img (text and image), vec, pe (see `comfy.models.dit`). Patches of the
        attention and of what enters the blocks: see `comfy.models.attention_patches`; there,
        `reference_image_num_tokens` lists how many tokens each reference has, behind those of the image.
        """
        height, width = x.shape[-2:]
        patch = self.config.patch_size

        img, img_ids = self.image_tokens(x)
        img_ids = scaled_ids(img_ids, transformer_options)
        image_tokens, clean_tail = img.shape[1], False
        options = dict(transformer_options or {})
        if ref_latents:
            method = ref_latents_method or self.default_ref_method
            places = place_references((height, width), [r.shape[-2:] for r in ref_latents], method, patch)
            refs = [self.image_tokens(r, place) for r, place in zip(ref_latents, places)]
            img = torch.cat([img, *(tokens.to(img).expand(img.shape[0], -1, -1) for tokens, _ in refs)], dim=1)
            img_ids = torch.cat([img_ids, *(ids for _, ids in refs)], dim=1)
            clean_tail = method == TIMESTEP_ZERO
            options["reference_image_num_tokens"] = [tokens.shape[1] for tokens, _ in refs]
        entering = block_inputs(
            options,
            img=self.img_in(img),
            txt=self.txt_in(context),
            img_ids=img_ids,
            txt_ids=img_ids.new_zeros(1, context.shape[1], 3),
        )
        ids = torch.cat([entering["txt_ids"], entering["img_ids"]], dim=1)
        pe = rope_table(ids, self.config.axes_dim, self.config.theta)

        vec = self.conditioning(timesteps, guidance, y, x.dtype)
        if clean_tail:
            clean = self.conditioning(torch.zeros_like(timesteps), guidance, y, x.dtype)
            vec = torch.cat([vec, clean], dim=1)

        img = run_blocks(
            self.double_blocks,
            self.single_blocks,
            entering["img"],
            entering["txt"],
            lambda i: vec,
            lambda i: vec,
            pe,
            widened_mask(attention_mask, ids.shape[1]),
            entering["img"].shape[1] - image_tokens if clean_tail else 0,
            control,
            options,
        )
        img = self.final_layer(img[:, :image_tokens], vec[:, :1])
        return unpatchify(img, -(-height // patch), -(-width // patch), patch)[:, :, :height, :width]

    def conditioning(self, timesteps: Tensor, guidance: Tensor | None, y: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What the blocks are modulated with [batch, 1, width]."""
        vec = self.time_in.embed_number(timesteps, dtype)
        if self.guidance_in is not None and guidance is not None:
            vec = vec + self.guidance_in.embed_number(guidance, dtype)
        if self.vector_in is not None:
            if y is None:
                y = vec.new_zeros(vec.shape[0], self.config.vec_in_dim)
            vec = vec + self.vector_in(y[:, : self.config.vec_in_dim])
        return vec.unsqueeze(1)
