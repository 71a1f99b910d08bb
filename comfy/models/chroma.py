"""Chroma: the blocks of FLUX.1 with all modulations made by one small network.

Source: Rock 2025, Chroma (Apache-2.0), a FLUX.1 schnell whose modulation layers were distilled into an approximator
that is asked for one vector per modulation index. No pooled text vector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention_patches import block_inputs
from comfy.models.dit import (
    FromDict,
    count_blocks,
    modulate,
    pad_to_patch_size,
    patchify,
    plain_norm,
    timestep_embedding,
    unpatchify,
)
from comfy.models.flux_layers import (
    TIME_FACTOR,
    BlockShape,
    DoubleStreamBlock,
    Modulations,
    ScaleNamedNorms,
    SingleStreamBlock,
    head_width,
    run_blocks,
    widened_mask,
)
from comfy.models.references import place_references
from comfy.models.rope import grid_ids, rope_table, scaled_ids

# The approximator was trained on the indices of a model with 38 one-stream and 19 two-stream blocks
# (38 * 3 + 19 * 12 + 2); smaller models use the first and the last of them.
MODULATION_COUNT = 344


@dataclasses.dataclass(frozen=True)
class ChromaConfig(FromDict):
    """Shape of the transformer. in_channels: of the latent, before patches are formed. in_dim: width of the
    approximator's input, hidden_dim and n_layers: of the approximator itself."""

    in_channels: int = 16
    out_channels: int = 16
    patch_size: int = 2
    hidden_size: int = 3072
    num_heads: int = 24
    depth: int = 19
    depth_single_blocks: int = 38
    mlp_ratio: float = 4.0
    context_in_dim: int = 4096
    axes_dim: tuple[int, ...] = (16, 56, 56)
    theta: float = 10000.0
    qkv_bias: bool = True
    in_dim: int = 64
    hidden_dim: int = 5120
    n_layers: int = 5


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> ChromaConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win (patch size and the
    split of a head among the axes are not told by shapes).

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    patch = overrides.get("patch_size", 2)
    hidden_size = shape("img_in.weight")[0]
    values: dict[str, Any] = {
        "in_channels": shape("img_in.weight")[1] // patch**2,
        "out_channels": shape("final_layer.linear.weight")[0] // patch**2,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // head_width(sd, prefix),
        "depth": count_blocks(sd, prefix + "double_blocks.{}.img_attn.qkv.weight"),
        "depth_single_blocks": count_blocks(sd, prefix + "single_blocks.{}.linear1.weight"),
        "mlp_ratio": shape("double_blocks.0.img_mlp.0.weight")[0] / hidden_size,
        "context_in_dim": shape("txt_in.weight")[1],
        "qkv_bias": f"{prefix}double_blocks.0.img_attn.qkv.bias" in sd,
        "in_dim": shape("distilled_guidance_layer.in_proj.weight")[1],
        "hidden_dim": shape("distilled_guidance_layer.in_proj.weight")[0],
        "n_layers": count_blocks(sd, prefix + "distilled_guidance_layer.layers.{}.in_layer.weight"),
    }
    values.update(overrides)
    return ChromaConfig(**values)


class ApproximatorLayer(nn.Module):
    """Linear, SiLU, Linear."""

    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.in_layer = operations.Linear(width, width, **factory)
        self.out_layer = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_layer(F.silu(self.in_layer(x)))


class Approximator(ScaleNamedNorms, nn.Module):
    """Residual MLP from (timestep, guidance, index) to the modulation vector of that index."""

    def __init__(self, in_width: int, width: int, out_width: int, layers: int, operations, **factory):
        super().__init__()
        self.in_width = in_width
        self.in_proj = operations.Linear(in_width, width, **factory)
        self.layers = nn.ModuleList(ApproximatorLayer(width, operations, **factory) for _ in range(layers))
        self.norms = nn.ModuleList(operations.RMSNorm(width, **factory) for _ in range(layers))
        self.out_proj = operations.Linear(width, out_width, **factory)

    def forward(self, timesteps: Tensor, guidance: Tensor, dtype: torch.dtype) -> Tensor:
        """All modulation vectors [batch, MODULATION_COUNT, out width]."""
        indices = torch.arange(MODULATION_COUNT, device=timesteps.device)
        quarter, half = self.in_width // 4, self.in_width // 2
        moment = torch.cat(
            [
                timestep_embedding(timesteps * TIME_FACTOR, quarter),
                timestep_embedding(guidance * TIME_FACTOR, quarter),
            ],
            dim=-1,
        )
        index = timestep_embedding(indices * TIME_FACTOR, half)
        x = torch.cat(
            [
                moment.unsqueeze(1).expand(-1, MODULATION_COUNT, -1),
                index.unsqueeze(0).expand(moment.shape[0], -1, -1),
            ],
            dim=-1,
        )
        x = self.in_proj(x.to(dtype))
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x))
        return self.out_proj(x)


class LastLayer(nn.Module):
    """Modulated norm, then the pixels of each patch."""

    def __init__(self, width: int, out_width: int, operations, **factory):
        super().__init__()
        self.linear = operations.Linear(width, out_width, **factory)

    def forward(self, x: Tensor, modulation: Modulations) -> Tensor:
        return self.linear(modulate(plain_norm(x), *modulation))


class Chroma(nn.Module):
    """Predicts the flow of a latent at a timestep, given T5 tokens."""

    def __init__(
        self,
        config: ChromaConfig,
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
        self.distilled_guidance_layer = Approximator(
            config.in_dim, config.hidden_dim, width, config.n_layers, operations, **factory
        )
        shape = BlockShape(
            width,
            config.num_heads,
            int(width * config.mlp_ratio),
            own_modulation=False,
            qkv_bias=config.qkv_bias,
        )
        self.double_blocks = nn.ModuleList(DoubleStreamBlock(shape, operations, **factory) for _ in range(config.depth))
        self.single_blocks = nn.ModuleList(
            SingleStreamBlock(shape, operations, **factory) for _ in range(config.depth_single_blocks)
        )
        self.final_layer = LastLayer(width, config.out_channels * patch_area, operations, **factory)

    def image_tokens(self, x: Tensor, place: tuple[float, int, int] = (0, 0, 0)) -> tuple[Tensor, Tensor]:
        """Patch vectors [batch, tokens, c] of an image and their positions [1, tokens, 3]."""
        patch = self.config.patch_size
        x = pad_to_patch_size(x, (patch, patch))
        rows, columns = x.shape[-2] // patch, x.shape[-1] // patch
        return patchify(x, patch), grid_ids(1, rows, columns, start=place, device=x.device)

    def forward(
        self,
        x: Tensor,
        timesteps: Tensor,
        context: Tensor,
        guidance: Tensor | None = None,
        ref_latents: Sequence[Tensor] | None = None,
        control: dict[str, list[Tensor | None]] | None = None,
        transformer_options: dict | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Output [batch, out_channels, height, width]; arguments as for `comfy.models.flux.Flux.forward` (guidance
        missing: 0). The `vec` that replaced blocks see holds their modulations (image and text, or the one
        stream's)."""
        height, width = x.shape[-2:]
        patch = self.config.patch_size
        img, img_ids = self.image_tokens(x)
        img_ids = scaled_ids(img_ids, transformer_options)
        image_tokens = img.shape[1]
        if ref_latents:
            places = place_references((height, width), [r.shape[-2:] for r in ref_latents], patch=patch)
            refs = [self.image_tokens(r, place) for r, place in zip(ref_latents, places)]
            img = torch.cat([img, *(tokens.to(img).expand(img.shape[0], -1, -1) for tokens, _ in refs)], dim=1)
            img_ids = torch.cat([img_ids, *(ids for _, ids in refs)], dim=1)
        entering = block_inputs(
            transformer_options,
            img=self.img_in(img),
            txt=self.txt_in(context),
            img_ids=img_ids,
            txt_ids=img_ids.new_zeros(1, context.shape[1], 3),
        )
        ids = torch.cat([entering["txt_ids"], entering["img_ids"]], dim=1)
        pe = rope_table(ids, self.config.axes_dim, self.config.theta)

        guidance = torch.zeros_like(timesteps) if guidance is None else guidance
        vectors = self.distilled_guidance_layer(timesteps, guidance, x.dtype)
        img = run_blocks(
            self.double_blocks,
            self.single_blocks,
            entering["img"],
            entering["txt"],
            lambda i: self.double_modulations(vectors, i),
            lambda i: vectors[:, 3 * i : 3 * i + 3].split(1, dim=1),
            pe,
            widened_mask(attention_mask, ids.shape[1]),
            control=control,
            transformer_options=transformer_options,
        )
        img = self.final_layer(img[:, :image_tokens], vectors[:, -2:].split(1, dim=1))
        return unpatchify(img, -(-height // patch), -(-width // patch), patch)[:, :, :height, :width]

    def double_modulations(self, vectors: Tensor, block: int) -> tuple[Modulations, Modulations]:
        """Image and text modulations of a two-stream block. Order of the indices: one-stream blocks (3 each), image
        streams (6), text streams (6), last layer (2)."""
        img = 3 * self.config.depth_single_blocks + 6 * block
        txt = img + 6 * self.config.depth
        return vectors[:, img : img + 6].split(1, dim=1), vectors[:, txt : txt + 6].split(1, dim=1)
