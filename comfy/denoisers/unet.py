"""The UNets of Stable Diffusion 1, 2 and XL that take more than a text: pictures to edit, pooled vectors, sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
