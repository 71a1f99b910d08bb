"""The UNets of Stable Diffusion 1, 2 and XL that take more than a text: pictures to edit, pooled vectors, sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import comfy.conds
from comfy.model_base import BaseModel, MissingConditioning, ModelType
from comfy.models.unet import timestep_embedding

# Each number beside the pooled vector of SDXL becomes this many sinusoids.
SIZE_WIDTH = 256
# Pixels per side where a conditioning does not tell its size.
DEFAULT_SIZE = 768
# The aesthetic score the refiner is asked for.
AESTHETIC_SCORE = 6.0
NEGATIVE_AESTHETIC_SCORE = 2.5


class IP2P:
    """InstructPix2Pix (Brooks et al. 2023): the latent of the picture to edit goes beside the noisy one."""

    def concat_cond(self, **kwargs: Any) -> Tensor:
        noise, device = kwargs["noise"], kwargs["device"]
        image = kwargs.get("concat_latent_image")
        if image is None:
            return torch.zeros_like(noise)
        return self.process_ip2p_image_in(self._fitted(image.to(device), noise))

    def process_ip2p_image_in(self, image: Tensor) -> Tensor:
        """The picture's latent as the network was trained on it: not scaled."""
        return image


class SD15_instructpix2pix(IP2P, BaseModel):
    """Stable Diffusion 1.5 with 8 input channels."""


def pooled_vector(model: BaseModel, conditioning: dict[str, Any]) -> Tensor:
    """The pooled text vector. Raises MissingConditioning."""
    pooled = conditioning.get("pooled_output")
    if pooled is None:
        raise MissingConditioning(
            f"{type(model).__name__} needs the text encoder's pooled vector, which this conditioning has not got: "
            "it comes from a text encoder of another model family, or the vector was removed"
        )
    return pooled


def size_vector(pooled: Tensor, numbers: list[float]) -> Tensor:
    """[batch, pooled width + 256 per number]: the pooled vector, then sinusoids of each number."""
    values = torch.tensor(numbers, dtype=torch.float32, device=pooled.device)
    embedded = timestep_embedding(values, SIZE_WIDTH).flatten().unsqueeze(0).expand(pooled.shape[0], -1)
    return torch.cat([pooled, embedded.to(pooled.dtype)], dim=1)


class SDXL(BaseModel):
    """Stable Diffusion XL (Podell et al. 2023): conditioned on the pooled text, and on original size, crop and target
    size in pixels, each height first."""

    def encode_adm(self, **kwargs: Any) -> Tensor:
        pooled = pooled_vector(self, kwargs)
        width, height = kwargs.get("width", DEFAULT_SIZE), kwargs.get("height", DEFAULT_SIZE)
        crop = [kwargs.get("crop_h", 0), kwargs.get("crop_w", 0)]
        target = [kwargs.get("target_height", height), kwargs.get("target_width", width)]
        return size_vector(pooled.to(kwargs["device"]), [height, width, *crop, *target])


class SDXL_instructpix2pix(IP2P, SDXL):
    """SDXL with 8 input channels. CosXL Edit, the one that predicts velocity, takes a scaled latent."""

    def process_ip2p_image_in(self, image: Tensor) -> Tensor:
        return self.process_latent_in(image) if self.model_type == ModelType.V_PREDICTION_EDM else image


class SDXLRefiner(BaseModel):
    """SDXL's second model, for the last steps: conditioned on the pooled text, size, crop and an aesthetic score."""

    def encode_adm(self, **kwargs: Any) -> Tensor:
        pooled = pooled_vector(self, kwargs)
        width, height = kwargs.get("width", DEFAULT_SIZE), kwargs.get("height", DEFAULT_SIZE)
        negative = kwargs.get("prompt_type", "") == "negative"
        score = kwargs.get("aesthetic_score", NEGATIVE_AESTHETIC_SCORE if negative else AESTHETIC_SCORE)
        crop = [kwargs.get("crop_h", 0), kwargs.get("crop_w", 0)]
        return size_vector(pooled.to(kwargs["device"]), [height, width, *crop, score])


class SD_X4Upscaler(BaseModel):
    """The picture to enlarge goes beside the latent, with some noise in it; the network is told how much.

    Source: Stability AI 2022, stable-diffusion-x4-upscaler (noise of the first 350 of 1000 steps).
    """

    MAX_NOISE_LEVEL = 350
    PICTURE_CHANNELS = 3

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any):
        super().__init__(model_config, *args, **kwargs)
        # The share of the picture's variance that is left at each level.
        self.register_buffer("picture_alphas", picture_alphas(), persistent=False)

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        out = super().extra_conds(**kwargs)
        noise, image = kwargs["noise"], kwargs.get("concat_image")
        if image is None:
            image = torch.zeros_like(noise[:, : self.PICTURE_CHANNELS])
        image = self._fitted(image.to(kwargs["device"]), noise)
        amount = kwargs.get("noise_augmentation", 0.0)
        level = round(self.MAX_NOISE_LEVEL * amount)
        if amount > 0:
            image = self.noised(image, level, max(0, (kwargs.get("seed") or 0) - 10))
        out["c_concat"] = comfy.conds.CONDNoiseShape(image)
        out["y"] = comfy.conds.CONDRegular(torch.tensor([level]))
        return out

    def noised(self, image: Tensor, level: int, seed: int) -> Tensor:
        """The picture at a noise level. Not with the seed of the run itself: its noise is the latent's already."""
        alpha = self.picture_alphas[level].to(image)
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)).to(image)
        return alpha.sqrt() * image + (1 - alpha).sqrt() * noise


def picture_alphas(steps: int = 1000, start: float = 0.0001, end: float = 0.02) -> Tensor:
    """Products of 1 - beta for betas whose roots are evenly spaced (the schedule of latent diffusion)."""
    betas = torch.linspace(start**0.5, end**0.5, steps, dtype=torch.float64, device="cpu") ** 2
    return torch.cumprod(1 - betas, dim=0).float()
