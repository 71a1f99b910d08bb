"""ControlNets of FLUX.1: a copy of the model's first blocks that also sees a picture.

Three makes: InstantX (and Shakker Labs, Alimama, jasperai ...; diffusers' layout) see the picture's latent, some of
them one of several kinds of pictures ("union") or a mask beside it; XLabs and MistoLine (the layout of the model's
authors) see its pixels. Sources: diffusers' FluxControlNetModel (Apache-2.0), XLabs' x-flux (Apache-2.0) and the
published files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.dit import pad_to_patch_size, patchify
from comfy.models.flux import Flux, FluxConfig
from comfy.models.rope import rope_table
from comfy.models.union import check_kinds

MODEL_DOUBLE_BLOCKS, MODEL_SINGLE_BLOCKS = 19, 38
PIXEL_CHANNELS = 16

# Kernel and stride of the convolutions from pixels to the latent's size.
XLABS_PLAN = ((3, 1), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1))
MISTOLINE_PLAN = ((3, 1), (1, 1), (3, 1), (3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (1, 1), (3, 1))


class _ActivatedLinear(nn.Module):
    """MistoLine's output layers."""

    def __init__(self, width: int, operations: Any, **factory: Any):
        super().__init__()
        self.linear = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.linear(x))


def _convolutions(plan: Sequence[tuple[int, int]], operations: Any, **factory: Any) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for kernel, stride in plan:
        layers.append(
            operations.Conv2d(channels, PIXEL_CHANNELS, kernel, stride=stride, padding=kernel // 2, **factory)
        )
        layers.append(nn.SiLU())
        channels = PIXEL_CHANNELS
    return nn.Sequential(*layers[:-1])


class ControlNetFlux(Flux):
    """Tensors to add to the image tokens of FLUX.1, from the noisy latent and a picture.

    make: `latent` (InstantX), `xlabs` or `mistoline`. hint_channels: of the picture's latent, with a mask where there
    is one (pixels always become 16). union_types: how many kinds of pictures a union net knows, 0 for others.
    """

    def __init__(
        self,
        config: FluxConfig,
        make: str = "latent",
        hint_channels: int = 16,
        union_types: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        factory = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.make = make
        del self.final_layer

        def outputs(count: int) -> nn.ModuleList:
            if make == "mistoline":
                return nn.ModuleList(_ActivatedLinear(width, operations, **factory) for _ in range(count))
            return nn.ModuleList(operations.Linear(width, width, **factory) for _ in range(count))

        self.controlnet_blocks = outputs(config.depth)
        self.controlnet_single_blocks = outputs(config.depth_single_blocks)
        self.union_types = union_types
        if union_types:
            self.controlnet_mode_embedder = operations.Embedding(union_types, width, **factory)
        channels = hint_channels if make == "latent" else PIXEL_CHANNELS
        self.controlnet_x_embedder = operations.Linear(channels * config.patch_size**2, width, **factory)
        if make == "xlabs":
            self.input_hint_block = _convolutions(XLABS_PLAN, operations, **factory)
        elif make == "mistoline":
            self.input_cond_block = nn.Module()
            self.input_cond_block.encoder = _convolutions(MISTOLINE_PLAN, operations, **factory)

    def forward(
        self,
        x: Tensor,
        hint: Tensor,
        timesteps: Tensor,
        context: Tensor,
        y: Tensor | None = None,
        guidance: Tensor | None = None,
        control_type: Sequence[int] = (),
        **kwargs: Any,
    ) -> dict[str, list[Tensor]]:
        """x: [batch, in_channels, h, w]; hint: [batch, hint_channels, h, w], or pixels [batch, 3, 8h, 8w] in 0..1;
        control_type: for union nets, which kind the picture is of; the others as for the model.

        Returns tensors [batch, image tokens, width] per block of the model: "input" for its two-stream blocks,
        "output" for its one-stream ones (if this net has such). Raises UnknownUnionType.
        """
        img, img_ids = self.image_tokens(x)
        img = self.img_in(img) + self.controlnet_x_embedder(self._hint_tokens(hint))
        txt = self.txt_in(context)
        if self.union_types and len(control_type):
            txt = torch.cat([self._kinds(control_type, txt), txt], dim=1)
        txt_ids = img_ids.new_zeros(1, txt.shape[1], img_ids.shape[-1])
        pe = rope_table(torch.cat([txt_ids, img_ids], dim=1), self.config.axes_dim, self.config.theta)
        vec = self.conditioning(timesteps, guidance, y, x.dtype)

        two_streams = []
        for block, project in zip(self.double_blocks, self.controlnet_blocks):
            img, txt = block(img, txt, vec, pe)
            two_streams.append(project(img))
        h = torch.cat([txt, img], dim=1)
        one_stream = []
        for block, project in zip(self.single_blocks, self.controlnet_single_blocks):
            h = block(h, vec, pe)
            one_stream.append(project(h[:, txt.shape[1] :]))

        in_turn = self.make != "latent"
        out = {"input": spread_over(two_streams, MODEL_DOUBLE_BLOCKS, in_turn)}
        if one_stream:
            out["output"] = spread_over(one_stream, MODEL_SINGLE_BLOCKS)
        return out

    def _hint_tokens(self, hint: Tensor) -> Tensor:
        if self.make == "xlabs":
            hint = self.input_hint_block(hint * 2.0 - 1.0)
        elif self.make == "mistoline":
            hint = self.input_cond_block.encoder(hint * 2.0 - 1.0)
        patch = self.config.patch_size
        return patchify(pad_to_patch_size(hint, (patch, patch)), patch)

    def _kinds(self, control_type: Sequence[int], like: Tensor) -> Tensor:
        """A token per kind of picture [batch, kinds, width]."""
        check_kinds(control_type, self.union_types)
        kinds = torch.tensor(list(control_type), device=like.device)
        return self.controlnet_mode_embedder(kinds).to(like.dtype).expand(like.shape[0], -1, -1)


def spread_over(tensors: Sequence[Tensor], blocks: int, in_turn: bool = False) -> list[Tensor]:
    """One tensor per block of the model: each several times in a row, or all of them in turn."""
    if in_turn:
        return [tensors[i % len(tensors)] for i in range(blocks)]
    each = math.ceil(blocks / len(tensors))
    return [tensors[i // each] for i in range(blocks)]
