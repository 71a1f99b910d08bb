"""The video autoencoder of Wan 2.2 5B: 48 channels, a sixteenth of the size, a quarter of the frames.

Source: Wan Team 2025, the code of Wan 2.2 (Apache-2.0): that of Wan 2.1 on squares of 2 x 2 pixels, with shortcuts
around its levels that average cells (down) or repeat them (up), as in Chen et al. 2024, "Deep Compression Autoencoder".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.vae.autoencoder_wan import (
    Downsample,
    Half,
    Parts,
    ResidualBlock,
    Upsample,
    WanAutoencoder,
    WanAutoencoderConfig,
    middle_blocks,
)

PIXELS = 2  # of a square along a side


@dataclasses.dataclass(frozen=True)
class Wan22AutoencoderConfig(WanAutoencoderConfig):
    """decoder_dim: as dim, of the decoder, which is wider."""

    dim: int = 160
    z_dim: int = 48
    decoder_dim: int = 256

    @property
    def downscale(self) -> int:
        return super().downscale * PIXELS


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "") -> Wan22AutoencoderConfig:
    """From tensor names and shapes below `prefix`. Raises KeyError naming a missing tensor."""

    def blocks(level: int) -> int:
        name = f"{prefix}encoder.downsamples.{level}.downsamples."
        return sum(f"{name}{i}.residual.2.weight" in sd for i in range(64))

    dim = sd[f"{prefix}encoder.conv1.weight"].shape[0]
    levels = next(i for i in range(64) if not blocks(i))
    names = [f"{prefix}encoder.downsamples.{i}.downsamples.{blocks(i)}." for i in range(levels)]
    return Wan22AutoencoderConfig(
        dim=dim,
        z_dim=sd[f"{prefix}conv2.weight"].shape[0],
        dim_mult=tuple(
            sd[f"{prefix}encoder.downsamples.{i}.downsamples.0.residual.2.weight"].shape[0] // dim
            for i in range(levels)
        ),
        num_res_blocks=blocks(0),
        temporal_downsample=tuple(f"{name}time_conv.weight" in sd for name in names[:-1]),
        decoder_dim=sd[f"{prefix}decoder.head.0.gamma"].shape[0],
    )


def averaged(x: Tensor, channels: int, time: int, side: int) -> Tensor:
    """Blocks of `time` x `side` x `side` cells [batch, c, frames, h, w] as one cell each, averaged in groups to
    `channels`. The first block is filled up with zeros in front."""
    x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % time, 0))
    x = x.unflatten(2, (-1, time)).unflatten(4, (-1, side)).unflatten(6, (-1, side))
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)
    return x.unflatten(1, (channels, -1)).mean(dim=2)


def repeated(x: Tensor, channels: int, time: int, side: int) -> Tensor:
    """The other way round: cells spread over blocks, repeated so that there are `channels`."""
    x = x.repeat_interleave(channels * time * side**2 // x.shape[1], dim=1)
    x = x.unflatten(1, (channels, time, side, side)).permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)


class Down(nn.Module):
    """A level of the encoder; `step`: whether it ends at half the size, `in_time`: and half the frames."""

    def __init__(self, before: int, after: int, count: int, step: bool, in_time: bool, operations, **factory: Any):
        super().__init__()
        self.after, self.time, self.side = after, 2 if in_time else 1, 2 if step else 1
        blocks: list[nn.Module] = [
            ResidualBlock(before if i == 0 else after, after, operations, **factory) for i in range(count)
        ]
        if step:
            blocks.append(Downsample(after, in_time, operations, **factory))
        self.downsamples = nn.Sequential(*blocks)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        shortcut = averaged(x, self.after, self.time, self.side)
        for block in self.downsamples:
            x = block(x, past)
        return x + shortcut


class Up(nn.Module):
    """A level of the decoder; `step`: whether it ends at twice the size, `in_time`: and twice the frames."""

    def __init__(self, before: int, after: int, count: int, step: bool, in_time: bool, operations, **factory: Any):
        super().__init__()
        self.after, self.time, self.side = after, 2 if in_time else 1, 2 if step else 1
        blocks: list[nn.Module] = [
            ResidualBlock(before if i == 0 else after, after, operations, **factory) for i in range(count)
        ]
        if step:
            blocks.append(Upsample(after, in_time, operations, out=after, **factory))
        self.upsamples = nn.Sequential(*blocks)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        shortcut = None
        if self.side > 1:
            shortcut = repeated(x, self.after, self.time, self.side)
            if past.take(self) is None:
                # The first frame is one frame, not several.
                shortcut = shortcut[:, :, self.time - 1 :]
            past.keep(self, x[:, :, :0])
        for block in self.upsamples:
            x = block(x, past)
        return x if shortcut is None else x + shortcut


class Encoder(Half):
    def __init__(self, config: Wan22AutoencoderConfig, operations: Any, **factory: Any):
        super().__init__()
        widths = [config.dim, *(config.dim * m for m in config.dim_mult)]
        in_time = (*config.temporal_downsample, False)
        last = len(in_time) - 1
        self.conv1 = operations.Conv3d(3 * PIXELS**2, widths[0], 3, **factory)
        self.downsamples = nn.Sequential(
            *(
                Down(widths[i], widths[i + 1], config.num_res_blocks, i < last, in_time[i], operations, **factory)
                for i in range(last + 1)
            )
        )
        self.middle = middle_blocks(widths[-1], operations, **factory)
        self.head = self._head(widths[-1], config.z_dim * 2, operations, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        return self._through(x, [*self.downsamples, *self.middle], past)


class Decoder(Half):
    def __init__(self, config: Wan22AutoencoderConfig, operations: Any, **factory: Any):
        super().__init__()
        widths = [config.decoder_dim * m for m in (config.dim_mult[-1], *config.dim_mult[::-1])]
        in_time = (*config.temporal_downsample[::-1], False)
        last = len(in_time) - 1
        self.conv1 = operations.Conv3d(config.z_dim, widths[0], 3, **factory)
        self.middle = middle_blocks(widths[0], operations, **factory)
        self.upsamples = nn.Sequential(
            *(
                Up(widths[i], widths[i + 1], config.num_res_blocks + 1, i < last, in_time[i], operations, **factory)
                for i in range(last + 1)
            )
        )
        self.head = self._head(widths[-1], 3 * PIXELS**2, operations, **factory)

    def forward(self, x: Tensor, past: Parts) -> Tensor:
        return self._through(x, [*self.middle, *self.upsamples], past)


def to_squares(x: Tensor) -> Tensor:
    """[batch, c, frames, h, w] -> [batch, 4 * c, frames, h / 2, w / 2]; of a square the column comes before the row."""
    x = x.unflatten(4, (-1, PIXELS)).unflatten(3, (-1, PIXELS))
    return x.permute(0, 1, 6, 4, 2, 3, 5).flatten(1, 3)


def from_squares(x: Tensor) -> Tensor:
    """The inverse."""
    x = x.unflatten(1, (-1, PIXELS, PIXELS)).permute(0, 1, 4, 5, 3, 6, 2)
    return x.flatten(5, 6).flatten(3, 4)


class Wan22Autoencoder(WanAutoencoder):
    """Videos [batch, 3, frames, h, w] in -1..1 to latents [batch, z_dim, 1 + (frames - 1) / 4, h / 16, w / 16] and
    back."""

    ENCODER, DECODER = Encoder, Decoder

    def __init__(
        self,
        config: Wan22AutoencoderConfig | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config or Wan22AutoencoderConfig(), dtype, device, operations)

    def encode(self, pixels: Tensor) -> Tensor:
        return super().encode(to_squares(pixels))

    def decode(self, latent: Tensor) -> Tensor:
        return from_squares(super().decode(latent))
