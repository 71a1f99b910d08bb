"""Stable Diffusion 2.1 unCLIP: a UNet conditioned on an image encoder's vector, which may be blurred by noise.

Source: Ramesh et al. 2022, "Hierarchical Text-Conditional Image Generation with CLIP Latents"; Stability AI's
published configuration (cosine schedule of 1000 steps, vectors normalised by the statistics in the checkpoint).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from comfy.model_base import BaseModel
from comfy.models.unet import timestep_embedding

STEPS = 1000
COSINE_OFFSET = 0.008
MAX_BETA = 0.999
# Where several pictures are mixed, the mixture gets this much noise.
MERGE_NOISE = 0.05


def cosine_alphas(steps: int = STEPS) -> Tensor:
    """What remains of the signal's variance after each step (Nichol & Dhariwal 2021)."""
    place = torch.arange(steps + 1, dtype=torch.float64, device="cpu") / steps
    remaining = torch.cos((place + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2) ** 2
    betas = (1 - remaining[1:] / remaining[:-1]).clamp(max=MAX_BETA)
    return torch.cumprod(1 - betas, dim=0).float()


class CLIPEmbeddingNoiseAugmentation(nn.Module):
    """Blurs a picture's vector. `data_mean`, `data_std` [1, width]: of all vectors, from the checkpoint."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.register_buffer("data_mean", torch.zeros(1, width, device="cpu"), persistent=False)
        self.register_buffer("data_std", torch.ones(1, width, device="cpu"), persistent=False)
        self.register_buffer("alphas", cosine_alphas(), persistent=False)

    def forward(self, vector: Tensor, level: int, seed: int) -> tuple[Tensor, Tensor]:
        """The vector [batch, width] at noise `level` (0..999), and the sinusoids [batch, width] that tell the level."""
        mean, std = self.data_mean.to(vector), self.data_std.to(vector)
        alpha = self.alphas[level].to(vector)
        noise = torch.randn(vector.shape, generator=torch.Generator().manual_seed(seed)).to(vector)
        blurred = alpha.sqrt() * (vector - mean) / std + (1 - alpha).sqrt() * noise
        told = timestep_embedding(torch.full((vector.shape[0],), float(level), device=vector.device), self.width)
        return blurred * std + mean, told.to(vector)


class SD21UNCLIP(BaseModel):
    """The vector of one picture, or of several mixed by their strengths, and how blurred it is; zeros without one."""

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any):
        super().__init__(model_config, *args, **kwargs)
        self.noise_augmentor = CLIPEmbeddingNoiseAugmentation(self.adm_channels // 2)

    def load_model_weights(self, sd: dict[str, Tensor], unet_prefix: str = "", assign: bool = True) -> SD21UNCLIP:
        for name in ("data_mean", "data_std"):
            if (value := sd.pop(f"noise_augmentor.{name}", None)) is not None:
                setattr(self.noise_augmentor, name, value.reshape(1, -1))
        super().load_model_weights(sd, unet_prefix, assign)
        return self

    def encode_adm(self, **kwargs: Any) -> Tensor:
        device = kwargs["device"]
        pictures = kwargs.get("unclip_conditioning")
        if not pictures:
            return torch.zeros(1, self.adm_channels, device=device)
        # Not the seed itself: its noise is the latent's already.
        seed = max(0, (kwargs.get("seed") or 0) - 10)
        made = []
        for picture in pictures:
            level = round((STEPS - 1) * picture["noise_augmentation"])
            for vector in picture["clip_vision_output"].image_embeds.to(device):
                vector, told = self.noise_augmentor(vector.reshape(1, -1), level, seed)
                made.append(torch.cat([vector, told], dim=1) * picture["strength"])
        mixed = torch.stack(made).sum(dim=0)
        if len(made) > 1:
            merge = kwargs.get("unclip_noise_augment_merge", MERGE_NOISE)
            vector, told = self.noise_augmentor(
                mixed[:, : self.noise_augmentor.width], round((STEPS - 1) * merge), seed
            )
            mixed = torch.cat([vector, told], dim=1)
        return mixed
