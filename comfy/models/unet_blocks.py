"""What UNets are made of: residual blocks, changes of size, the embedding of timesteps.

Sources: Ho et al. 2020 (residual blocks with time embedding), Dhariwal & Nichol 2021 (their variants).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops


def timestep_embedding(timesteps: Tensor, dim: int, max_period: float = 10000.0) -> Tensor:
    """Sinusoidal embedding [n, dim] = cat(cos, sin) of timesteps [n] (float, may be fractional), in
    float32."""
    half = dim // 2
    frequencies = torch.exp(
        -math.log(max_period) / half * torch.arange(half, dtype=torch.float32, device=timesteps.device)
    )
    angles = timesteps[:, None].float() * frequencies[None]
    embedding = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return F.pad(embedding, (0, 1)) if dim % 2 else embedding


class TimestepBlock(nn.Module):
    """A module whose forward takes the time embedding as second argument."""


def _convolution(operations: Any, dims: int, *args: Any, **kwargs: Any) -> nn.Module:
    kinds = {1: "Conv1d", 2: "Conv2d", 3: "Conv3d"}
    if dims not in kinds:
        raise ValueError(f"dims is {dims}, expected 1, 2 or 3")
    return getattr(operations, kinds[dims])(*args, **kwargs)


class Upsample(nn.Module):
    """Nearest neighbour to twice the size, or to the spatial size of `output_shape`; then a convolution, if
    `use_conv`. With `dims=3` the first of the three sizes stays."""

    def __init__(
        self,
        channels: int,
        use_conv: bool = True,
        dims: int = 2,
        out_channels: int | None = None,
        padding: int = 1,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        self.channels = channels
        self.out_channels = out_channels or channels
        self.use_conv = use_conv
        self.dims = dims
        if use_conv:
            self.conv = _convolution(
                operations, dims, channels, self.out_channels, 3, padding=padding, dtype=dtype, device=device
            )

    def forward(self, x: Tensor, output_shape: tuple[int, ...] | None = None) -> Tensor:
        factors = (1, 2, 2) if self.dims == 3 else (2,) * self.dims
        size = (
            tuple(output_shape[2:]) if output_shape is not None else tuple(n * f for n, f in zip(x.shape[2:], factors))
        )
        x = F.interpolate(x, size=size, mode="nearest")
        return self.conv(x) if self.use_conv else x


class Downsample(nn.Module):
    """Convolution with stride 2, odd sizes round up; without `use_conv` the mean of each pair, odd sizes round down.
    With `dims=3` the first of the three sizes stays."""

    def __init__(
        self,
        channels: int,
        use_conv: bool = True,
        dims: int = 2,
        out_channels: int | None = None,
        padding: int = 1,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        self.channels = channels
        self.out_channels = out_channels or channels
        self.use_conv = use_conv
        self.dims = dims
        stride = (1, 2, 2) if dims == 3 else 2
        if use_conv:
            self.op = _convolution(
                operations,
                dims,
                channels,
                self.out_channels,
                3,
                stride=stride,
                padding=padding,
                dtype=dtype,
                device=device,
            )
        else:
            if self.out_channels != channels:
                raise ValueError(f"without a convolution {channels} channels cannot become {out_channels}")
            self.op = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}[dims](stride, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x)


class ResBlock(TimestepBlock):
    """Two normed convolutions with the time embedding added between them, around a residual.

    Of the options only those of video models are in use (`dims=3`, kernel sizes for each axis, an embedding for each
    frame [batch, frames, width] with `exchange_temb_dims`, none with `skip_t_emb`); the others are those of Dhariwal &
    Nichol 2021. `use_checkpoint` is accepted for the interface's sake.
    """

    def __init__(
        self,
        channels: int,
        emb_channels: int,
        dropout: float = 0.0,
        out_channels: int | None = None,
        use_conv: bool = False,
        use_scale_shift_norm: bool = False,
        dims: int = 2,
        use_checkpoint: bool = False,
        up: bool = False,
        down: bool = False,
        kernel_size: int | Sequence[int] = 3,
        exchange_temb_dims: bool = False,
        skip_t_emb: bool = False,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        out_channels = out_channels or channels
        self.channels = channels
        self.emb_channels = emb_channels
        self.out_channels = out_channels
        self.use_scale_shift_norm = use_scale_shift_norm
        self.exchange_temb_dims = exchange_temb_dims
        kernel = kernel_size if isinstance(kernel_size, int) else tuple(kernel_size)
        padding = kernel // 2 if isinstance(kernel, int) else tuple(k // 2 for k in kernel)

        def convolution(channels: int, size: int | tuple[int, ...] = kernel, margin: Any = padding) -> nn.Module:
            return _convolution(operations, dims, channels, out_channels, size, padding=margin, **factory)

        self.in_layers = nn.Sequential(operations.GroupNorm(32, channels, **factory), nn.SiLU(), convolution(channels))
        resize = Upsample if up else Downsample if down else None
        self.resized = None if resize is None else resize(channels, use_conv=False, dims=dims)
        self.emb_layers = None
        if not skip_t_emb:
            width = 2 * out_channels if use_scale_shift_norm else out_channels
            self.emb_layers = nn.Sequential(nn.SiLU(), operations.Linear(emb_channels, width, **factory))
        self.out_layers = nn.Sequential(
            operations.GroupNorm(32, out_channels, **factory), nn.SiLU(), nn.Dropout(dropout), convolution(out_channels)
        )
        if out_channels == channels:
            self.skip_connection = nn.Identity()
        else:
            self.skip_connection = convolution(channels) if use_conv else convolution(channels, 1, 0)

    def forward(self, x: Tensor, emb: Tensor | None = None) -> Tensor:
        h = self.in_layers[1](self.in_layers[0](x))
        if self.resized is not None:
            h, x = self.resized(h), self.resized(x)
        h = self.in_layers[2](h)
        if self.emb_layers is None:
            return self.skip_connection(x) + self.out_layers(h)
        added = self.emb_layers(emb)
        added = added.reshape(*added.shape, *[1] * (h.ndim - added.ndim))
        if self.use_scale_shift_norm:
            scale, shift = added.chunk(2, dim=1)
            h = self.out_layers[0](h) * (1 + scale) + shift
            return self.skip_connection(x) + self.out_layers[1:](h)
        if self.exchange_temb_dims:
            added = added.transpose(1, 2)
        return self.skip_connection(x) + self.out_layers(h + added)
