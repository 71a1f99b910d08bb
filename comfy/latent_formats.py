"""Latent formats: what lies between a VAE's latent and the latent a diffusion model is trained on.

One class per format: channels, axes (1 sound, 2 image, 3 video), pixels per latent cell, the affine map that
brings the latent to unit scale, and the matrix that turns a latent into a rough RGB preview. Long figures
(per-channel mean and deviation, preview matrices) are in `comfy/sampling/latent_figures.json`.
Source of all figures: goldens, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

_FIGURES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "sampling" / "latent_figures.json").read_text(encoding="utf-8")
)


class LatentFormat:
    """in = latent * scale_factor, out = the inverse. `latent_rgb_factors` is [channels][3], or None."""

    scale_factor: float = 1.0
    latent_channels: int = 4
    latent_dimensions: int = 2
    latent_rgb_factors: list[list[float]] | None = None
    latent_rgb_factors_bias: list[float] | None = None
    latent_rgb_factors_reshape: Callable[[Tensor], Tensor] | None = None
    taesd_decoder_name: str | None = None
    spacial_downscale_ratio: int = 8
    temporal_downscale_ratio: int = 1

    def __init_subclass__(cls, figures: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = _FIGURES.get(figures or cls.__name__, {})
        for name in ("latent_rgb_factors", "latent_rgb_factors_bias"):
            if name in own:
                setattr(cls, name, own[name])

    def process_in(self, latent: Tensor) -> Tensor:
        """From the VAE's scale to the model's."""
        return latent * self.scale_factor

    def process_out(self, latent: Tensor) -> Tensor:
        """From the model's scale to the VAE's."""
        return latent / self.scale_factor


class ShiftedFormat(LatentFormat):
    """in = (latent - shift) * scale."""

    shift_factor: float = 0.0

    def process_in(self, latent: Tensor) -> Tensor:
        return (latent - self.shift_factor) * self.scale_factor

    def process_out(self, latent: Tensor) -> Tensor:
        return latent / self.scale_factor + self.shift_factor


class NormalisedFormat(LatentFormat):
    """in = (latent - mean) * scale / std, mean and std per channel."""

    channel_axis: ClassVar[int] = 1
    latents_mean: Tensor
    latents_std: Tensor

    def __init_subclass__(cls, figures: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(figures=figures, **kwargs)
        own = _FIGURES.get(figures or cls.__name__, {})
        if "latents_mean" in own:
            shape = [1] * (cls.latent_dimensions + 2) if cls.channel_axis == 1 else [1, 1]
            shape[cls.channel_axis] = cls.latent_channels
            cls.latents_mean = torch.tensor(own["latents_mean"], device="cpu").view(shape)
            cls.latents_std = torch.tensor(own["latents_std"], device="cpu").view(shape)

    def process_in(self, latent: Tensor) -> Tensor:
        mean = self.latents_mean.to(latent.device, latent.dtype)
        std = self.latents_std.to(latent.device, latent.dtype)
        return (latent - mean) * self.scale_factor / std

    def process_out(self, latent: Tensor) -> Tensor:
        mean = self.latents_mean.to(latent.device, latent.dtype)
        std = self.latents_std.to(latent.device, latent.dtype)
        return latent * std / self.scale_factor + mean


class PixelFormat(LatentFormat):
    """The model works on RGB pixels: nothing to scale, and the preview is the image itself."""

    latent_channels = 3
    spacial_downscale_ratio = 1
    latent_rgb_factors = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

    def process_in(self, latent: Tensor) -> Tensor:
        return latent

    def process_out(self, latent: Tensor) -> Tensor:
        return latent


# Stable Diffusion and its relatives


class SD15(LatentFormat):
    taesd_decoder_name = "taesd_decoder"

    def __init__(self, scale_factor: float = 0.18215) -> None:
        self.scale_factor = scale_factor


class SDXL(LatentFormat):
    scale_factor = 0.13025
    taesd_decoder_name = "taesdxl_decoder"


class SDXL_Playground_2_5(NormalisedFormat):
    scale_factor = 0.5
    taesd_decoder_name = "taesdxl_decoder"


class SD_X4(LatentFormat):
    scale_factor = 0.08333


class SC_Prior(LatentFormat):
    latent_channels = 16
    spacial_downscale_ratio = 42


class SC_B(LatentFormat):
    scale_factor = 1.0 / 0.43
    spacial_downscale_ratio = 4


class SD3(ShiftedFormat):
    latent_channels = 16
    scale_factor = 1.5305
    shift_factor = 0.0609
    taesd_decoder_name = "taesd3_decoder"


# Flux and other image models


class Flux(ShiftedFormat):
    latent_channels = 16
    scale_factor = 0.3611
    shift_factor = 0.1159
    taesd_decoder_name = "taef1_decoder"


class Flux2(LatentFormat):
    """128 channels are 32 channels of 2x2 cells, cell (row, column) fastest."""

    latent_channels = 128
    spacial_downscale_ratio = 16
    taesd_decoder_name = "taef2_decoder"

    def __init__(self) -> None:
        self.latent_rgb_factors_reshape = self.unfold_cells

    @staticmethod
    def unfold_cells(latent: Tensor) -> Tensor:
        """[batch, 128, h, w] -> [batch, 32, 2h, 2w]."""
        batch, channels, height, width = latent.shape
        cells = latent.reshape(batch, channels // 4, 2, 2, height, width)
        return cells.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, height * 2, width * 2)


class HunyuanImage21(LatentFormat):
    latent_channels = 64
    spacial_downscale_ratio = 32
    scale_factor = 0.75289


class HunyuanImage21Refiner(LatentFormat):
    """Pairs of frames folded into channels; the first frame is doubled so that the count is even."""

    latent_channels = 64
    latent_dimensions = 3
    scale_factor = 1.03682

    def process_in(self, latent: Tensor) -> Tensor:
        padded = torch.cat([latent[:, :, :1], latent], dim=2) * self.scale_factor
        batch, channels, frames, height, width = padded.shape
        pairs = padded.reshape(batch, channels, frames // 2, 2, height, width)
        return pairs.permute(0, 3, 1, 2, 4, 5).reshape(batch, channels * 2, frames // 2, height, width)

    def process_out(self, latent: Tensor) -> Tensor:
        batch, channels, pairs, height, width = latent.shape
        halves = latent.reshape(batch, 2, channels // 2, pairs, height, width)
        frames = halves.permute(0, 2, 3, 1, 4, 5).reshape(batch, channels // 2, pairs * 2, height, width)
        return frames[:, :, 1:] / self.scale_factor


class ChromaRadiance(PixelFormat):
    pass


class ZImagePixelSpace(PixelFormat):
    pass


class PixelDiTPixel(PixelFormat):
    pass


class HiDreamO1Pixel(PixelFormat):
    pass


# video


class Mochi(NormalisedFormat):
    latent_channels = 12
    latent_dimensions = 3
    temporal_downscale_ratio = 6


class LTXV(LatentFormat):
    latent_channels = 128
    latent_dimensions = 3
    spacial_downscale_ratio = 32
    temporal_downscale_ratio = 8


class LTXAV(LTXV):
    pass


class HunyuanVideo(LatentFormat):
    latent_channels = 16
    latent_dimensions = 3
    scale_factor = 0.476986
    temporal_downscale_ratio = 4
    taesd_decoder_name = "taehv"


class HunyuanVideo15(LatentFormat):
    latent_channels = 32
    latent_dimensions = 3
    scale_factor = 1.03682
    spacial_downscale_ratio = 16
    temporal_downscale_ratio = 4
    taesd_decoder_name = "lighttaehy1_5"


class Cosmos1CV8x8x8(LatentFormat):
    latent_channels = 16
    latent_dimensions = 3
    temporal_downscale_ratio = 8


class Wan21(NormalisedFormat):
    latent_channels = 16
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    taesd_decoder_name = "lighttaew2_1"


class Wan22(NormalisedFormat):
    latent_channels = 48
    latent_dimensions = 3
    spacial_downscale_ratio = 16
    temporal_downscale_ratio = 4
    taesd_decoder_name = "lighttaew2_2"


class CogVideoX(LatentFormat):
    latent_channels = 16
    latent_dimensions = 3
    temporal_downscale_ratio = 4

    def __init__(self) -> None:
        self.scale_factor = 1.15258426


class CogVideoX1_5(CogVideoX):
    def __init__(self) -> None:
        self.scale_factor = 0.7


class SeedVR2(LatentFormat):
    latent_channels = 16
    latent_dimensions = 3


class MiniMaxH3Video(LatentFormat):
    latent_channels = 24
    latent_dimensions = 3
    spacial_downscale_ratio = 16
    temporal_downscale_ratio = 4
    taesd_decoder_name = "taeh3"


class MiniMaxH3AV(MiniMaxH3Video, figures="MiniMaxH3Video"):
    latent_channels = 32


# sound


class StableAudio1(LatentFormat):
    latent_channels = 64
    latent_dimensions = 1
    temporal_downscale_ratio = 2048


class StableAudio3(LatentFormat):
    latent_channels = 256
    latent_dimensions = 1
    temporal_downscale_ratio = 4096


class ACEAudio(LatentFormat):
    latent_channels = 8
    latent_dimensions = 2


class ACEAudio15(LatentFormat):
    latent_channels = 64
    latent_dimensions = 1
    temporal_downscale_ratio = 1764


class MiniMaxMusic3(LatentFormat):
    latent_channels = 128
    latent_dimensions = 1
    temporal_downscale_ratio = 512


# shapes


class Hunyuan3Dv2(LatentFormat):
    latent_channels = 64
    latent_dimensions = 1
    scale_factor = 0.9990943042622529


class Hunyuan3Dv2_1(LatentFormat):
    latent_channels = 64
    latent_dimensions = 1
    scale_factor = 1.0039506158752403


class Hunyuan3Dv2mini(LatentFormat):
    latent_channels = 64
    latent_dimensions = 1
    scale_factor = 1.0188137142395404


class TripoSplat(LatentFormat):
    latent_channels = 16


class Trellis2(LatentFormat):
    latent_channels = 32


class Trellis2SLAT(NormalisedFormat):
    """Sparse latents [voxels, channels]: statistics along the last axis, given by the subclasses."""

    latent_channels = 32
    channel_axis = -1


class Trellis2ShapeSLAT(Trellis2SLAT):
    pass


class Trellis2TexSLAT(Trellis2SLAT):
    pass
