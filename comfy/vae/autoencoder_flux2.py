"""The image autoencoder of FLUX.2: a KL autoencoder whose latent is packed and normed.

Source: Black Forest Labs 2025, https://github.com/black-forest-labs/flux2 (Apache-2.0). Two by two latent cells become
one with four times the channels, which a batch norm with fixed statistics brings to mean 0 and variance 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.models.dit import pad_to_patch_size
from comfy.vae import autoencoder_kl
from comfy.vae.autoencoder_kl import AutoencoderConfig, AutoencoderKL

PATCH = 2
BATCH_NORM_EPS = 1e-4


@dataclasses.dataclass(frozen=True)
class Flux2AutoencoderConfig(AutoencoderConfig):
    """Shape of the autoencoder; `downscale` and `latent_channels` are those of the packed latent."""

    z_channels: int = 32
    embed_dim: int | None = 32

    @property
    def downscale(self) -> int:
        return super().downscale * PATCH

    @property
    def latent_channels(self) -> int:
        return super().latent_channels * PATCH**2


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "") -> Flux2AutoencoderConfig:
    """Read the configuration from tensor shapes below `prefix`. Raises KeyError naming a missing tensor."""
    config = autoencoder_kl.config_from_state_dict(sd, prefix)
    return Flux2AutoencoderConfig(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})


class LatentStatistics(nn.Module):
    """Mean and variance per packed channel, under the names of torch's BatchNorm."""

    def __init__(self, channels: int, **factory):
        super().__init__()
        self.register_buffer("running_mean", torch.empty(channels, **factory))
        self.register_buffer("running_var", torch.empty(channels, **factory))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long, device=factory.get("device")))

    def mean_and_deviation(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = (t.to(like)[:, None, None] for t in (self.running_mean, self.running_var))
        return mean, (var + BATCH_NORM_EPS).sqrt()

    def normalize(self, z: Tensor) -> Tensor:
        mean, deviation = self.mean_and_deviation(z)
        return (z - mean) / deviation

    def restore(self, z: Tensor) -> Tensor:
        mean, deviation = self.mean_and_deviation(z)
        return z * deviation + mean


class Flux2Autoencoder(AutoencoderKL):
    """`AutoencoderKL` with the packing around it."""

    def __init__(
        self,
        config: Flux2AutoencoderConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype=dtype, device=device, operations=operations)
        self.bn = LatentStatistics(config.latent_channels, dtype=dtype, device=device)

    def encode(self, pixels: Tensor) -> Tensor:
        """Packed latent [batch, 4 * embed_dim, height / 16, width / 16]."""
        z = pad_to_patch_size(super().encode(pixels), (PATCH, PATCH), "replicate")
        return self.bn.normalize(torch.nn.functional.pixel_unshuffle(z, PATCH))

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels, about -1..1, not clamped."""
        return super().decode(torch.nn.functional.pixel_shuffle(self.bn.restore(latent), PATCH))
