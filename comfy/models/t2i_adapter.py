"""T2I-Adapter: small convolutional nets whose features are added to a UNet's encoder (Mou et al. 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops

# Size of the squares of pixels that become channels: for the UNets of Stable Diffusion 1 and 2, and of XL.
UNSHUFFLE, UNSHUFFLE_XL = 8, 16


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """channels: of each level. in_channels: of the picture after its squares of pixels became channels. wide: made for
    SDXL, whose first two levels have one resolution."""

    in_channels: int
    channels: tuple[int, ...]
    blocks_per_level: int
    kernel_size: int = 1
    light: bool = False
    wide: bool = False

    @property
    def unshuffle(self) -> int:
        return UNSHUFFLE_XL if self.wide else UNSHUFFLE

    @property
    def picture_channels(self) -> int:
        return self.in_channels // self.unshuffle**2


def config_from_state_dict(sd: Mapping[str, Tensor]) -> AdapterConfig:
    """Raises KeyError naming a missing tensor."""
    if "body.0.in_conv.weight" in sd and "body.0.out_conv.weight" in sd:
        levels = _count(sd, "body.{}.in_conv.weight")
        return AdapterConfig(
            in_channels=sd["body.0.in_conv.weight"].shape[1],
            channels=tuple(sd[f"body.{i}.out_conv.weight"].shape[0] for i in range(levels)),
            blocks_per_level=_count(sd, "body.0.body.{}.block1.weight"),
            light=True,
        )
    in_channels = sd["conv_in.weight"].shape[1]
    widths = [sd[f"body.{i}.block1.weight"].shape[0] for i in range(_count(sd, "body.{}.block1.weight"))]
    # The first level ends where the width changes; all have equally many blocks.
    per_level = next((i for i in range(1, len(widths)) if f"body.{i}.in_conv.weight" in sd), len(widths))
    return AdapterConfig(
        in_channels=in_channels,
        channels=tuple(widths[::per_level]),
        blocks_per_level=per_level,
        kernel_size=sd["body.0.block2.weight"].shape[2],
        wide=in_channels in (UNSHUFFLE_XL**2, 3 * UNSHUFFLE_XL**2),
    )


def _count(sd: Mapping[str, Tensor], pattern: str) -> int:
    count = 0
    while pattern.format(count) in sd:
        count += 1
    return count


class _Block(nn.Module):
    """Two convolutions around a residual, after halving the size and widening where a level begins."""

    def __init__(self, before: int, after: int, kernel_size: int, down: bool, operations: Any, factory: dict):
        super().__init__()
        self.down_opt = nn.AvgPool2d(2) if down else nn.Identity()
        if before != after:
            self.in_conv = operations.Conv2d(before, after, 1, **factory)
        self.block1 = operations.Conv2d(after, after, 3, padding=1, **factory)
        self.act = nn.ReLU()
        self.block2 = operations.Conv2d(after, after, kernel_size, padding=kernel_size // 2, **factory)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down_opt(x)
        if hasattr(self, "in_conv"):
            x = self.in_conv(x)
        return x + self.block2(self.act(self.block1(x)))


class Adapter(nn.Module):
    """Features of a picture [batch, picture channels, h, w] in 0..1, one per level."""

    def __init__(
        self,
        config: AdapterConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.dtype = dtype
        self.unshuffle = nn.PixelUnshuffle(config.unshuffle)
        self.conv_in = operations.Conv2d(config.in_channels, config.channels[0], 3, padding=1, **factory)
        halving = (2,) if config.wide else range(1, len(config.channels))
        self.body = nn.ModuleList()
        width = config.channels[0]
        for level, channels in enumerate(config.channels):
            for index in range(config.blocks_per_level):
                down = index == 0 and level in halving
                self.body.append(_Block(width, channels, config.kernel_size, down, operations, factory))
                width = channels

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.conv_in(self.unshuffle(x))
        features = []
        for number, block in enumerate(self.body, start=1):
            x = block(x)
            if number % self.config.blocks_per_level == 0:
                features.append(x)
        return features


class _LightBlock(nn.Module):
    def __init__(self, channels: int, operations: Any, factory: dict):
        super().__init__()
        self.block1 = operations.Conv2d(channels, channels, 3, padding=1, **factory)
        self.act = nn.ReLU()
        self.block2 = operations.Conv2d(channels, channels, 3, padding=1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block2(self.act(self.block1(x)))


class _LightLevel(nn.Module):
    """A level that works on a quarter of its channels."""

    def __init__(self, before: int, after: int, blocks: int, down: bool, operations: Any, factory: dict):
        super().__init__()
        inner = after // 4
        self.down_opt = nn.AvgPool2d(2) if down else nn.Identity()
        self.in_conv = operations.Conv2d(before, inner, 1, **factory)
        self.body = nn.Sequential(*(_LightBlock(inner, operations, factory) for _ in range(blocks)))
        self.out_conv = operations.Conv2d(inner, after, 1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_conv(self.body(self.in_conv(self.down_opt(x))))


class AdapterLight(nn.Module):
    """As `Adapter`, with far fewer weights."""

    def __init__(
        self,
        config: AdapterConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.dtype = dtype
        self.unshuffle = nn.PixelUnshuffle(config.unshuffle)
        before = (config.in_channels, *config.channels)
        self.body = nn.ModuleList(
            _LightLevel(before[i], after, config.blocks_per_level, i > 0, operations, factory)
            for i, after in enumerate(config.channels)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.unshuffle(x)
        features = []
        for level in self.body:
            x = level(x)
            features.append(x)
        return features


def build(config: AdapterConfig, **kwargs: Any) -> Adapter | AdapterLight:
    return (AdapterLight if config.light else Adapter)(config, **kwargs)
