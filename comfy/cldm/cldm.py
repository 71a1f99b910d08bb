"""The ControlNet of UNets, made from single numbers: `comfy.models.control_unet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import comfy.ops
from comfy.faces import Face
from comfy.ldm.modules.diffusionmodules.openaimodel import unet_config
from comfy.models.control_unet import ControlNetUNet

__all__ = ["ControlNet"]


class ControlNet(ControlNetUNet, metaclass=Face):
    """See `comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel` for the numbers.

    hint_channels: of the picture; union_controlnet_num_control_type: kinds that a union net knows.

    Raises UnsupportedUNet naming an option that this network does not have.
    """

    face = True

    def __init__(
        self,
        image_size: int | None = None,
        in_channels: int = 4,
        model_channels: int = 320,
        hint_channels: int = 3,
        num_res_blocks: int | Sequence[int] = 2,
        dropout: float = 0,
        channel_mult: Sequence[int] = (1, 2, 4, 8),
        conv_resample: bool = True,
        dims: int = 2,
        num_classes: int | str | None = None,
        use_checkpoint: bool = False,
        dtype: torch.dtype | None = torch.float32,
        num_heads: int = -1,
        num_head_channels: int = -1,
        num_heads_upsample: int = -1,
        use_scale_shift_norm: bool = False,
        resblock_updown: bool = False,
        use_new_attention_order: bool = False,
        use_spatial_transformer: bool = False,
        transformer_depth: int | Sequence[int] = 1,
        context_dim: int | None = None,
        n_embed: int | None = None,
        legacy: bool = True,
        disable_self_attentions: Sequence[bool] | None = None,
        num_attention_blocks: Sequence[int] | None = None,
        disable_middle_self_attn: bool = False,
        use_linear_in_transformer: bool = False,
        adm_in_channels: int | None = None,
        transformer_depth_middle: int | None = None,
        transformer_depth_output: Sequence[int] | None = None,
        attn_precision: torch.dtype | None = None,
        union_controlnet_num_control_type: int | None = None,
        device: torch.device | str | None = None,
        operations: Any = comfy.ops.disable_weight_init,
        **others: Any,
    ):
        given = {**others, **{name: value for name, value in locals().items() if name not in _OWN}}
        types = union_controlnet_num_control_type or 0
        super().__init__(unet_config(**given), hint_channels, types, dtype, device, operations)


# Parameters that are not about the UNet.
_OWN = {"self", "others", "__class__", "hint_channels", "dtype", "device", "operations"} | {
    "union_controlnet_num_control_type"
}
