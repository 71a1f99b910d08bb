"""ControlNet: a copy of a UNet's encoder that looks at a picture (Zhang et al. 2023).

Also the union kind, one net for several kinds of pictures (xinsir, ControlNet++ 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention
from comfy.models.unet import (
    TimestepEmbedSequential,
    UNetConfig,
    UNetEncoder,
    forward_timestep_embed,
    timestep_embedding,
)
from comfy.models.union import check_kinds

# Channels of the layers that bring the picture down to an eighth of its size.
HINT_CHANNELS = (16, 32, 96, 256)
UNION_HEADS = 8
UNION_FREQUENCIES = 256


class ControlNetUNet(UNetEncoder):
    """Tensors to add to a UNet's skips and middle, from the noisy latent and a picture.

    hint_channels: of the picture. union_types: number of kinds a union net knows, 0 for others.
    """

    def __init__(
        self,
        config: UNetConfig,
        hint_channels: int = 3,
        union_types: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        factory = {"dtype": dtype, "device": device}
        width = config.model_channels
        self.num_control_type = union_types
        self.input_hint_block = TimestepEmbedSequential(*_hint_layers(hint_channels, width, operations, factory))
        # Called so because they are zero before training.
        self.zero_convs = nn.ModuleList(
            nn.Sequential(operations.Conv2d(n, n, 1, **factory)) for n in self.skip_channels
        )
        self.middle_block_out = nn.Sequential(operations.Conv2d(self.channels, self.channels, 1, **factory))
        if union_types:
            self.task_embedding = nn.Parameter(torch.empty(union_types, width, **factory), requires_grad=False)
            self.transformer_layes = nn.Sequential(_UnionBlock(width, operations, factory))
            self.spatial_ch_projs = operations.Linear(width, width, **factory)
            self.control_add_embedding = _UnionEmbedding(union_types, width * 4, operations, factory)

    def forward(
        self,
        x: Tensor,
        hint: Tensor,
        timesteps: Tensor,
        context: Tensor | None = None,
        y: Tensor | None = None,
        control_type: Sequence[int] = (),
        **kwargs: Any,
    ) -> dict[str, list[Tensor]]:
        """x: [batch, in_channels, h, w], scaled as for the UNet; hint: [batch, hint_channels, 8h, 8w] in 0..1.
        Returns {"output": one tensor per input block, "middle": one}. control_type: for union nets, which kinds the
        picture is of. Raises UnknownUnionType."""
        if self.num_control_type:
            check_kinds(control_type, self.num_control_type)
        emb = self.embed(timesteps, x.dtype)
        if self.num_control_type and control_type:
            emb = emb + self.control_add_embedding(control_type, emb)
        if self.num_classes is not None:
            emb = emb + self.embed_vector(y)
        guided = self.input_hint_block(hint, emb, context)
        if self.num_control_type and control_type:
            guided = self._fused(guided, x, emb, context, control_type)

        outputs, h = [], x
        for number, (block, zero_conv) in enumerate(zip(self.input_blocks, self.zero_convs)):
            h = forward_timestep_embed(block, h, emb, context)
            if number == 0:
                h = h + guided
            outputs.append(zero_conv(h))
        h = forward_timestep_embed(self.middle_block, h, emb, context)
        return {"output": outputs, "middle": [self.middle_block_out(h)]}

    def _fused(
        self, guided: Tensor, x: Tensor, emb: Tensor, context: Tensor | None, control_type: Sequence[int]
    ) -> Tensor:
        """A union net shifts the channels of the embedded picture, after mixing its mean with the latent's."""
        latent = forward_timestep_embed(self.input_blocks[0], x, emb, context)
        kind = self.task_embedding[control_type[0]].to(guided)
        means = torch.stack([guided.mean(dim=(2, 3)) + kind, latent.mean(dim=(2, 3))], dim=1)
        shift = self.spatial_ch_projs(self.transformer_layes(means)[:, 0])
        return guided + shift[:, :, None, None]


def _hint_layers(hint_channels: int, width: int, operations: Any, factory: Mapping[str, Any]) -> list[nn.Module]:
    """Convolutions from the picture to the UNet's first width; three of them halve the size."""
    first, *others = HINT_CHANNELS
    plan = [(hint_channels, first, 1), (first, first, 1)]
    for before, after in zip(HINT_CHANNELS, others):
        plan += [(before, after, 2), (after, after, 1)]
    # The last width is not convolved again but brought to the UNet's.
    plan[-1] = (HINT_CHANNELS[-1], width, 1)
    layers: list[nn.Module] = []
    for index, (before, after, stride) in enumerate(plan):
        layers.append(operations.Conv2d(before, after, 3, padding=1, stride=stride, **factory))
        if index < len(plan) - 1:
            layers.append(nn.SiLU())
    return layers


class _UnionAttention(nn.Module):
    """Self-attention with fused projections, named as torch's MultiheadAttention names them."""

    def __init__(self, width: int, operations: Any, factory: Mapping[str, Any]):
        super().__init__()
        self.in_proj = operations.Linear(width, width * 3, **factory)
        self.out_proj = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        return self.out_proj(optimized_attention(q, k, v, UNION_HEADS))


class _QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class _UnionBlock(nn.Module):
    """A transformer block over a few mean vectors [batch, n, width]."""

    def __init__(self, width: int, operations: Any, factory: Mapping[str, Any]):
        super().__init__()
        self.attn = _UnionAttention(width, operations, factory)
        self.ln_1 = operations.LayerNorm(width, **factory)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", operations.Linear(width, width * 4, **factory))
        self.mlp.add_module("gelu", _QuickGELU())
        self.mlp.add_module("c_proj", operations.Linear(width * 4, width, **factory))
        self.ln_2 = operations.LayerNorm(width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class _UnionEmbedding(nn.Module):
    """What is added to the time embedding for the kinds of picture given."""

    def __init__(self, types: int, emb_channels: int, operations: Any, factory: Mapping[str, Any]):
        super().__init__()
        self.types = types
        self.linear_1 = operations.Linear(UNION_FREQUENCIES * types, emb_channels, **factory)
        self.linear_2 = operations.Linear(emb_channels, emb_channels, **factory)

    def forward(self, control_type: Sequence[int], like: Tensor) -> Tensor:
        given = torch.zeros(self.types, device=like.device)
        given[list(control_type)] = 1.0
        vector = timestep_embedding(given, UNION_FREQUENCIES).to(like.dtype).reshape(1, -1)
        return self.linear_2(nn.functional.silu(self.linear_1(vector)))
