"""The registry of model families. A checkpoint is of the first family in `models` that matches it.

To add one: a class here, a detector of its network in `comfy.model_detection`, and its network in
`comfy/models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

import comfy.latent_formats
import comfy.model_base
from comfy import supported_models_base
from comfy.supported_models_base import BASE, ClipTarget
from comfy.text_encoders import sd1

__all__ = ["BASE", "SD15", "SD15_instructpix2pix", "models", "supported_models_base"]


class SD15(BASE):
    """Stable Diffusion 1.x and its inpainting model, of any width."""

    unet_config = {"image_model": "unet", "use_linear_in_transformer": False, "adm_in_channels": None}
    latent_format = comfy.latent_formats.SD15
    memory_usage_factor = 1.0

    def process_clip_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """`cond_stage_model.transformer.text_model...`, in the oldest files without `text_model.`."""
        return sd1.checkpoint_to_model(super().process_clip_state_dict(state_dict))

    def process_clip_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {self.text_encoder_key_prefix[0] + k.removeprefix("clip_l."): v for k, v in state_dict.items()}

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return ClipTarget(sd1.SD1Tokenizer, sd1.build)


class SD15_instructpix2pix(SD15):
    """InstructPix2Pix on Stable Diffusion 1.5."""

    unet_config = {**SD15.unet_config, "in_channels": 8}
    base_model = comfy.model_base.SD15_instructpix2pix

    def inpaint_model(self) -> bool:
        return False


# Special cases before the general ones.
models: list[Any] = [SD15_instructpix2pix, SD15]
