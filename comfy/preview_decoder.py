"""The tiny decoder behind previews: read once, and a model like others as far as memory goes.

It runs while a diffusion model does, so nothing gives way for it: where there is no room for its few megabytes, each
layer brings its own weights to the device as it runs.
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.held_weights import patcher_for
from comfy.loaded_models import load_if_it_fits
from comfy.model_base import load_assigned
from comfy.vae import taesd

_KEPT = 4  # one for each kind of latent that somebody may go to and fro between


class PreviewNetwork(nn.Module):
    """A decoder of TAESD, whose own latents are those that models sample."""

    def __init__(self, latent_channels: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.layers = taesd.decoder(latent_channels, comfy.ops.manual_cast, dtype=dtype, device="meta")

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent) * 2 - 1


class PreviewDecoder:
    """Pixels from latents, on the latents' device."""

    def __init__(self, network: PreviewNetwork, device: torch.device) -> None:
        self.patcher = patcher_for(network, device)

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels [batch, 3, height, width], about -1..1, of latents [batch, channels, h, w], or of the first frames of
        [batch, channels, frames, h, w]."""
        load_if_it_fits(self.patcher)
        return self.patcher.model(latent[:, :, 0] if latent.ndim == 5 else latent)


def preview_decoder(path: str, latent_channels: int, device: torch.device) -> PreviewDecoder:
    """The decoder in a file. Raises WeightsFileError when it cannot be read, WeightsMismatch when it is another one."""
    return _read(path, os.path.getmtime(path), latent_channels, device)


@lru_cache(maxsize=_KEPT)
def _read(path: str, _changed: float, latent_channels: int, device: torch.device) -> PreviewDecoder:
    sd = comfy.utils.load_torch_file(path, safe_load=True)
    with torch.inference_mode(False):
        network = PreviewNetwork(latent_channels, comfy.utils.weight_dtype(sd))
        load_assigned(network, {f"layers.{key}": value for key, value in sd.items()}, "preview decoder")
    return PreviewDecoder(network.eval(), device)
