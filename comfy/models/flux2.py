"""The rectified flow transformer of FLUX.2.

Source: Black Forest Labs 2025, https://github.com/black-forest-labs/flux2 (Apache-2.0). Against FLUX.1: one
modulation per stream for all blocks of a kind, SiLU-gated MLPs, no biases, no pooled vector, tokens for single
cells of a latent that is already packed (`comfy.vae.autoencoder_flux2`), and a fourth position axis that counts the
words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention_patches import block_inputs
from comfy.models.dit import FREQUENCY_WIDTH, FromDict, count_blocks
from comfy.models.flux_layers import (
    BlockShape,
    DoubleStreamBlock,
    LastLayer,
    MLPEmbedder,
    Modulation,
    SingleStreamBlock,
    head_width,
    run_blocks,
    widened_mask,
)
from comfy.models.references import TIMESTEP_ZERO, place_references
from comfy.models.rope import grid_ids, rope_table, scaled_ids

TEXT_AXIS = 3
# References stand this far apart on the first position axis.
REFERENCE_INDEX_SCALE = 10.0


@dataclasses.dataclass(frozen=True)
class Flux2Config(FromDict):
    """Shape of the transformer. axes_dim: channels of a head for the four position axes (index, row, column,
    word)."""

    in_channels: int = 128
    out_channels: int = 128
    hidden_size: int = 6144
    num_heads: int = 48
    depth: int = 8
    depth_single_blocks: int = 48
    mlp_ratio: float = 3.0
    context_in_dim: int = 15360
    axes_dim: tuple[int, ...] = (32, 32, 32, 32)
    theta: float = 2000.0
    guidance_embed: bool = True


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> Flux2Config:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (the split of a head
    among the axes is not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    hidden_size, in_channels = shape("img_in.weight")
    values: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": shape("final_layer.linear.weight")[0],
        "hidden_size": hidden_size,
        "num_heads": hidden_size // head_width(sd, prefix),
        "depth": count_blocks(sd, prefix + "double_blocks.{}.img_attn.qkv.weight"),
        "depth_single_blocks": count_blocks(sd, prefix + "single_blocks.{}.linear1.weight"),
        "mlp_ratio": shape("double_blocks.0.img_mlp.2.weight")[1] / hidden_size,
        "context_in_dim": shape("txt_in.weight")[1],
        "guidance_embed": f"{prefix}guidance_in.in_layer.weight" in sd,
    }
    values.update(overrides)
    return Flux2Config(**values)


class Flux2(nn.Module):
    """Predicts the flow of a packed latent at a timestep, given text tokens and a guidance strength."""

    # How references are placed where the conditioning does not tell.
    default_ref_method = "index"

    def __init__(
        self,
        config: Flux2Config,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        layers = {"operations": operations, "bias": False, **factory}
        width = config.hidden_size
        self.config = config
        self.dtype = dtype
        self.img_in = operations.Linear(config.in_channels, width, bias=False, **factory)
        self.txt_in = operations.Linear(config.context_in_dim, width, bias=False, **factory)
        self.time_in = MLPEmbedder(FREQUENCY_WIDTH, width, **layers)
        self.guidance_in = MLPEmbedder(FREQUENCY_WIDTH, width, **layers) if config.guidance_embed else None
        self.double_stream_modulation_img = Modulation(width, 6, **layers)
        self.double_stream_modulation_txt = Modulation(width, 6, **layers)
        self.single_stream_modulation = Modulation(width, 3, **layers)
        shape = BlockShape(
            width,
            config.num_heads,
            int(width * config.mlp_ratio),
            own_modulation=False,
            gated=True,
            bias=False,
            qkv_bias=False,
        )
        self.double_blocks = nn.ModuleList(DoubleStreamBlock(shape, operations, **factory) for _ in range(config.depth))
        self.single_blocks = nn.ModuleList(
            SingleStreamBlock(shape, operations, **factory) for _ in range(config.depth_single_blocks)
        )
        self.final_layer = LastLayer(width, config.out_channels, **layers)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        guidance: Tensor | None = None,
        ref_latents: Sequence[Tensor] | None = None,
        ref_latents_method: str | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width]; arguments as for `comfy.models.flux.Flux.forward`, with
        references placed by `index` unless told otherwise. The `vec` that replaced blocks see holds the modulations
        (image and text, or the one stream's)."""
        height, width = x.shape[-2:]
        img = x.flatten(2).transpose(1, 2)
        ids = [scaled_ids(grid_ids(1, height, width, 1, device=x.device), transformer_options)]
        image_tokens, clean_tail = img.shape[1], False
        options = dict(transformer_options or {})
        if ref_latents:
            method = ref_latents_method or self.default_ref_method
            places = place_references(
                (height, width), [r.shape[-2:] for r in ref_latents], method, 1, REFERENCE_INDEX_SCALE
            )
            refs = [r.flatten(2).transpose(1, 2).to(img).expand(img.shape[0], -1, -1) for r in ref_latents]
            img = torch.cat([img, *refs], dim=1)
            ids += [
                grid_ids(1, *r.shape[-2:], 1, start=(*place, 0), device=x.device)
                for r, place in zip(ref_latents, places)
            ]
            clean_tail = method == TIMESTEP_ZERO
            options["reference_image_num_tokens"] = [tokens.shape[1] for tokens in refs]
        words = torch.zeros(1, context.shape[1], 4, device=x.device)
        words[..., TEXT_AXIS] = torch.arange(context.shape[1], device=x.device)
        entering = block_inputs(
            options,
            img=self.img_in(img),
            txt=self.txt_in(context),
            img_ids=torch.cat(ids, dim=1),
            txt_ids=words,
        )
        positions = torch.cat([entering["txt_ids"], entering["img_ids"]], dim=1)
        pe = rope_table(positions, self.config.axes_dim, self.config.theta)

        vec = self.conditioning(timesteps, guidance, x.dtype)
        if clean_tail:
            vec = torch.cat([vec, self.conditioning(torch.zeros_like(timesteps), guidance, x.dtype)], dim=1)
        double = (self.double_stream_modulation_img(vec), self.double_stream_modulation_txt(vec[:, :1]))
        single = self.single_stream_modulation(vec)

        img = run_blocks(
            self.double_blocks,
            self.single_blocks,
            entering["img"],
            entering["txt"],
            lambda i: double,
            lambda i: single,
            pe,
            widened_mask(attention_mask, positions.shape[1]),
            entering["img"].shape[1] - image_tokens if clean_tail else 0,
            control,
            options,
        )
        img = self.final_layer(img[:, :image_tokens], vec[:, :1])
        return img.transpose(1, 2).unflatten(2, (height, width))

    def conditioning(self, timesteps: Tensor, guidance: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What the modulations are computed from [batch, 1, width]."""
        vec = self.time_in.embed_number(timesteps, dtype)
        if self.guidance_in is not None and guidance is not None:
            vec = vec + self.guidance_in.embed_number(guidance, dtype)
        return vec.unsqueeze(1)
