"""The UNet and its blocks: `comfy.models.unet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import comfy.models.unet
import comfy.ops
from comfy.faces import Face, mirror
from comfy.models.attention import SpatialTransformer
from comfy.models.unet import UNetConfig
from comfy.models.video_blocks import VideoResBlock

__all__ = ["SpatialTransformer", "UNetModel", "UnsupportedUNet", "VideoResBlock", "unet_config"]


class UnsupportedUNet(ValueError):
    """A UNet was asked for that has a part which this implementation does not have."""


# What these options mean only old research models use; their neutral values.
_NEUTRAL: dict[str, Any] = {
    "dropout": 0,
    "conv_resample": True,
    "dims": 2,
    "num_heads_upsample": -1,
    "use_scale_shift_norm": False,
    "resblock_updown": False,
    "use_new_attention_order": False,
    "n_embed": None,
    "disable_self_attentions": None,
    "num_attention_blocks": None,
    "disable_middle_self_attn": False,
}
# Layers across frames are those of Stable Video Diffusion, or there are none.
_TEMPORAL: dict[str, Any] = {
    "use_temporal_resblock": True,
    "use_spatial_context": True,
    "extra_ff_mix_layer": True,
    "merge_strategy": "learned_with_images",
    "video_kernel_size": [3, 1, 1],
    "disable_temporal_crossattention": False,
}


class UNetModel(comfy.models.unet.UNetModel, metaclass=Face):
    """The UNet, made from single numbers instead of a `UNetConfig`.

    transformer_depth: transformer blocks per residual block of the encoder, or one number for all;
    transformer_depth_output: likewise for the decoder, lists run from the highest resolution to the lowest;
    image_size, use_checkpoint, legacy, use_spatial_transformer: accepted for the interface's sake.

    Raises UnsupportedUNet naming an option that this UNet does not have.
    """

    face = True

    def __init__(
        self,
        image_size: int | None = None,
        in_channels: int = 4,
        model_channels: int = 320,
        out_channels: int = 4,
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
        device: torch.device | str | None = None,
        operations: Any = comfy.ops.disable_weight_init,
        **others: Any,
    ):
        given = {**others, **{name: value for name, value in locals().items() if name not in _NO_SHAPE}}
        super().__init__(unet_config(**given), dtype=dtype, device=device, operations=operations)


# Parameters that say nothing about the shape.
_NO_SHAPE = {"self", "others", "__class__", "dtype", "device", "operations"}


def unet_config(
    *,
    in_channels: int = 4,
    model_channels: int = 320,
    out_channels: int = 4,
    num_res_blocks: int | Sequence[int] = 2,
    channel_mult: Sequence[int] = (1, 2, 4, 8),
    num_classes: int | str | None = None,
    num_heads: int = -1,
    num_head_channels: int = -1,
    transformer_depth: int | Sequence[int] = 1,
    context_dim: int | None = None,
    use_linear_in_transformer: bool = False,
    adm_in_channels: int | None = None,
    transformer_depth_middle: int | None = None,
    transformer_depth_output: Sequence[int] | None = None,
    attn_precision: torch.dtype | None = None,
    **others: Any,
) -> UNetConfig:
    """The shape of a UNet from single numbers; see `UNetModel`.

    Raises UnsupportedUNet naming an option that this UNet does not have.
    """
    for name, neutral in _NEUTRAL.items():
        if others.get(name, neutral) != neutral:
            raise UnsupportedUNet(f"{name}={others[name]!r}: this UNet only has {neutral!r}")
    temporal = bool(others.get("use_temporal_attention"))
    wanted = _TEMPORAL if temporal else {"use_temporal_resblock": False}
    for name, value in wanted.items():
        given = others.get(name, value)
        if (list(given) if isinstance(given, tuple) else given) != value:
            raise UnsupportedUNet(f"{name}={given!r}: with use_temporal_attention={temporal} it is {value!r} here")
    if num_classes not in (None, "sequential"):
        raise UnsupportedUNet(f"num_classes={num_classes!r}: this UNet takes a vector ('sequential') or nothing")
    levels = len(channel_mult)
    blocks = (num_res_blocks,) * levels if isinstance(num_res_blocks, int) else tuple(num_res_blocks)
    if isinstance(transformer_depth, int):
        transformer_depth = (transformer_depth,) * sum(blocks)
    if transformer_depth_output is None:
        transformer_depth_output = _mirrored(tuple(transformer_depth), blocks)
    if transformer_depth_middle is None:
        transformer_depth_middle = transformer_depth[-1]
    return UNetConfig(
        in_channels=in_channels,
        out_channels=out_channels,
        model_channels=model_channels,
        channel_mult=tuple(channel_mult),
        num_res_blocks=blocks,
        transformer_depth=tuple(transformer_depth),
        transformer_depth_middle=transformer_depth_middle,
        transformer_depth_output=tuple(transformer_depth_output),
        context_dim=context_dim,
        adm_in_channels=adm_in_channels,
        use_linear_in_transformer=use_linear_in_transformer,
        num_heads=num_heads,
        num_head_channels=num_head_channels,
        attn_precision=attn_precision,
        temporal=temporal,
    )


def _mirrored(depths: tuple[int, ...], blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Depths of the decoder, which has one block more on each level, of the depth of the level's last."""
    out: list[int] = []
    start = 0
    for count in blocks:
        level = depths[start : start + count]
        out += [*level, level[-1]]
        start += count
    return tuple(out)


mirror(__name__, comfy.models.unet)
