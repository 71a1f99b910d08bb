"""The tiny autoencoders for Stable Diffusion, XL, SD3 and FLUX: fast, approximate stand-ins for the large
ones.

Source: Bohan 2023, TAESD, https://github.com/madebyollin/taesd (MIT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops

WIDTH = 64
BLOCKS_PER_LEVEL = 3


@dataclasses.dataclass(frozen=True)
class TAESDKind:
    """What turns the tiny autoencoder's own latents into those of the large one it stands in for: stored
    latent = own / scale + shift."""

    latent_channels: int
    scale: float
    shift: float


KINDS: dict[str, TAESDKind] = {
    "taesd": TAESDKind(4, 0.18215, 0.0),
    "taesdxl": TAESDKind(4, 0.13025, 0.0),
    "taesd3": TAESDKind(16, 1.5305, 0.0609),
    "taef1": TAESDKind(16, 0.3611, 0.1159),
}


@dataclasses.dataclass(frozen=True)
class TAESDConfig:
    """latent_channels and the affine map to the large autoencoder's latents. has_encoder, has_decoder: files
    come as halves."""

    latent_channels: int = 4
    scale: float = 1.0
    shift: float = 0.0
    has_encoder: bool = True
    has_decoder: bool = True

    @classmethod
    def of_kind(cls, kind: str, **values: Any) -> TAESDConfig:
        """Of one of KINDS. Raises KeyError for another name."""
        if kind not in KINDS:
            raise KeyError(f"tiny autoencoder {kind!r} is none of {', '.join(KINDS)}")
        return cls(**{**dataclasses.asdict(KINDS[kind]), **values})

    @property
    def downscale(self) -> int:
        """Pixels per latent cell along one side."""
        return 8


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> TAESDConfig:
    """Read the configuration from the halves `encoder.*` and `decoder.*` below `prefix`; `overrides` win
    (scale and shift are not told by shapes).

    Raises KeyError when there is neither half.
    """
    encoder, decoder = f"{prefix}encoder.14.weight", f"{prefix}decoder.1.weight"
    if encoder not in sd and decoder not in sd:
        raise KeyError(decoder)
    channels = sd[decoder].shape[1] if decoder in sd else sd[encoder].shape[0]
    values = {"latent_channels": channels, "has_encoder": encoder in sd, "has_decoder": decoder in sd}
    return TAESDConfig(**{**values, **overrides})


class Clamp(nn.Module):
    """Soft limit to -3..3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / 3) * 3


class Block(nn.Module):
    """Three convolutions around a residual."""

    def __init__(self, operations, **factory):
        super().__init__()

        def conv() -> nn.Module:
            return operations.Conv2d(WIDTH, WIDTH, 3, padding=1, **factory)

        self.conv = nn.Sequential(conv(), nn.ReLU(), conv(), nn.ReLU(), conv())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x) + x)


def encoder(latent_channels: int, operations, **factory) -> nn.Sequential:
    """Pixels 0..1 [batch, 3, height, width] to the tiny autoencoder's own latents, an eighth of the size."""
    layers: list[nn.Module] = [operations.Conv2d(3, WIDTH, 3, padding=1, **factory), Block(operations, **factory)]
    for _ in range(3):
        layers.append(operations.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1, bias=False, **factory))
        layers += [Block(operations, **factory) for _ in range(BLOCKS_PER_LEVEL)]
    return nn.Sequential(*layers, operations.Conv2d(WIDTH, latent_channels, 3, padding=1, **factory))


def decoder(latent_channels: int, operations, **factory) -> nn.Sequential:
    """Own latents to pixels 0..1, not clamped."""
    layers: list[nn.Module] = [
        Clamp(),
        operations.Conv2d(latent_channels, WIDTH, 3, padding=1, **factory),
        nn.ReLU(),
    ]
    for _ in range(3):
        layers += [Block(operations, **factory) for _ in range(BLOCKS_PER_LEVEL)]
        layers.append(nn.Upsample(scale_factor=2))
        layers.append(operations.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False, **factory))
    layers.append(Block(operations, **factory))
    return nn.Sequential(*layers, operations.Conv2d(WIDTH, 3, 3, padding=1, **factory))


class TAESD(nn.Module):
    """Encoder and decoder with the scale of the large autoencoder's latents on the outside."""

    def __init__(
        self,
        config: TAESDConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        channels = config.latent_channels
        self.encoder = encoder(channels, operations, **factory) if config.has_encoder else None
        self.decoder = decoder(channels, operations, **factory) if config.has_decoder else None

    def encode(self, pixels: Tensor) -> Tensor:
        """Latent of pixels [batch, 3, height, width] in -1..1."""
        if self.encoder is None:
            raise ValueError("this tiny autoencoder has no encoder: only the decoder's file was given")
        return self.encoder((pixels + 1) / 2) / self.config.scale + self.config.shift

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels, about -1..1, not clamped."""
        if self.decoder is None:
            raise ValueError("this tiny autoencoder has no decoder: only the encoder's file was given")
        return self.decoder((latent - self.config.shift) * self.config.scale) * 2 - 1

    def forward(self, pixels: Tensor) -> Tensor:
        return self.decode(self.encode(pixels))
