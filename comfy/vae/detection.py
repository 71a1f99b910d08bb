"""Which autoencoder a state dict is, and the network for it.

`detectors` is a list of functions (state_dict) -> Autoencoder or None; the first that answers decides. To add a kind:
its network in a file of its own, and a detector here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from comfy.vae import (
    autoencoder_flux2,
    autoencoder_kl,
    autoencoder_wan,
    autoencoder_wan22,
    diffusers_layout,
    diffusers_wan,
    taesd,
)


@dataclass(frozen=True)
class Autoencoder:
    """What was found: how to build the network, its tensors under the network's names, and what it says about
    latents."""

    network: Callable[..., nn.Module]
    weights: Mapping[str, Tensor]
    latent_channels: int
    downscale: int
    output_channels: int = 3
    # Frames per latent frame behind the first one, for videos; None for pictures.
    time_downscale: int | None = None


class PixelSpace(nn.Module):
    """No autoencoder at all: the model works on pixels in -1..1."""

    def __init__(self, dtype: torch.dtype | None = None, device: Any = None, operations: Any = None):
        super().__init__()
        self.pixel_space_vae = nn.Parameter(torch.tensor(1.0))

    def encode(self, pixels: Tensor) -> Tensor:
        return pixels

    def decode(self, latent: Tensor) -> Tensor:
        return latent


def detect_pixel_space(sd: Mapping[str, Tensor]) -> Autoencoder | None:
    if "pixel_space_vae" not in sd:
        return None
    return Autoencoder(PixelSpace, sd, latent_channels=3, downscale=1)


def detect_kl(sd: Mapping[str, Tensor]) -> Autoencoder | None:
    """Stable Diffusion's, SD3's and Flux's, and Flux 2's, which adds statistics of the packed latent."""
    if "decoder.conv_in.weight" not in sd or "encoder.conv_in.weight" not in sd:
        return None
    # Networks of the same names that work on sound or video have other kernels.
    if sd["decoder.conv_in.weight"].ndim != 4:
        return None
    if diffusers_layout.MARK in sd:
        sd = diffusers_layout.to_own_layout(sd)
    kind, network = autoencoder_kl, autoencoder_kl.AutoencoderKL
    if "bn.running_mean" in sd:
        kind, network = autoencoder_flux2, autoencoder_flux2.Flux2Autoencoder
    config = kind.config_from_state_dict(sd)

    def build(**kwargs: Any) -> nn.Module:
        return network(config, **kwargs)

    return Autoencoder(build, sd, config.latent_channels, config.downscale, config.out_channels)


def detect_taesd(sd: Mapping[str, Tensor]) -> Autoencoder | None:
    """The tiny autoencoders; both halves in one dict, under `taesd_encoder.` and `taesd_decoder.`, with the entries
    `vae_scale` and `vae_shift` for the family's latents."""
    weights = {k.removeprefix("taesd_"): v for k, v in sd.items() if k.startswith(("taesd_encoder.", "taesd_decoder."))}
    if not weights:
        return None
    config = taesd.config_from_state_dict(
        weights,
        scale=float(sd.get("vae_scale", 1.0)),
        shift=float(sd.get("vae_shift", 0.0)),
    )

    def build(**kwargs: Any) -> nn.Module:
        return taesd.TAESD(config, **kwargs)

    return Autoencoder(build, weights, config.latent_channels, config.downscale)


def detect_wan(sd: Mapping[str, Tensor]) -> Autoencoder | None:
    """Wan 2.1's, which Qwen-Image uses, too, and Wan 2.2's."""
    if diffusers_wan.MARK in sd:
        sd = diffusers_wan.to_own_layout(sd)
    elif diffusers_wan.MARK_22 in sd:
        sd = diffusers_wan.to_own_layout_22(sd)
    if "decoder.middle.0.residual.0.gamma" not in sd:
        return None
    kind, network = autoencoder_wan, autoencoder_wan.WanAutoencoder
    if "encoder.downsamples.0.downsamples.0.residual.2.weight" in sd:
        kind, network = autoencoder_wan22, autoencoder_wan22.Wan22Autoencoder
    elif "encoder.downsamples.0.residual.2.weight" not in sd:
        return None
    config = kind.config_from_state_dict(sd)

    def build(**kwargs: Any) -> nn.Module:
        return network(config, **kwargs)

    return Autoencoder(build, sd, config.z_dim, config.downscale, time_downscale=config.time_downscale)


CHECKPOINT_PREFIXES = ("first_stage_model.", "vae.")

detectors: list[Callable[[Mapping[str, Tensor]], Autoencoder | None]] = [
    detect_pixel_space,
    detect_kl,
    detect_taesd,
    detect_wan,
]


def detect(sd: Mapping[str, Tensor]) -> Autoencoder | None:
    """The autoencoder that `sd` holds; None if no detector knows it."""
    for prefix in CHECKPOINT_PREFIXES:  # saved out of a checkpoint
        if sd and all(key.startswith(prefix) for key in sd):
            sd = {key.removeprefix(prefix): value for key, value in sd.items()}
    return next((found for found in (detector(sd) for detector in detectors) if found is not None), None)
