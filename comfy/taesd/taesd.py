"""TAESD with the constructor that node packs know: paths of its two files. See `comfy.vae.taesd`."""

from __future__ import annotations

import torch
from torch import nn

import comfy.ops
import comfy.utils
from comfy.vae import taesd
from comfy.vae.taesd import Block, Clamp

__all__ = ["TAESD", "Block", "Clamp", "conv"]


def conv(n_in: int, n_out: int, **kwargs) -> nn.Module:
    """A 3x3 convolution that keeps the size."""
    return comfy.ops.disable_weight_init.Conv2d(n_in, n_out, 3, padding=1, **kwargs)


class TAESD(taesd.TAESD):
    """Encoder and decoder, from the files given (a half without a file has random weights).

    `vae_scale` and `vae_shift`, numbers as tensors, are set from outside: the latents of the large autoencoder are
    (own / scale) + shift.
    """

    def __init__(self, encoder_path: str | None = None, decoder_path: str | None = None, latent_channels: int = 4):
        super().__init__(taesd.TAESDConfig(latent_channels=latent_channels))
        self.taesd_encoder, self.taesd_decoder = self.encoder, self.decoder
        del self.encoder, self.decoder
        self.vae_scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.vae_shift = nn.Parameter(torch.tensor(0.0), requires_grad=False)
        self.requires_grad_(False)
        for half, path in ((self.taesd_encoder, encoder_path), (self.taesd_decoder, decoder_path)):
            if path is None:
                comfy.ops.init_weights(half)
            else:
                half.load_state_dict(comfy.utils.load_torch_file(path, safe_load=True))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Latent of pixels [batch, 3, height, width] in -1..1."""
        return self.taesd_encoder(x * 0.5 + 0.5) / self.vae_scale + self.vae_shift

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """Pixels, about -1..1, not clamped."""
        return self.taesd_decoder((x - self.vae_shift) * self.vae_scale) * 2 - 1
