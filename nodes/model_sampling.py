"""Nodes that change how a model's noise levels are spaced, or how its guidance is computed."""

from __future__ import annotations

import copy
from typing import Any

import torch

import comfy.model_sampling
from comfy_api.latest import io

from .constants import MAX_RESOLUTION
from .model_schedulers import ltxv_shift


def _resampled(model: Any, parametrisation: type, table: type, **parameters: float) -> Any:
    """A clone of the model with another table of noise levels and another meaning of its output."""
    patched = model.clone()
    sampling = comfy.model_sampling.combine(parametrisation, table)(model.model.model_config)
    sampling.set_parameters(**parameters)
    patched.add_object_patch("model_sampling", sampling)
    return patched


class ModelSamplingSD3:
    DESCRIPTION = "Shifts the noise levels of flow models such as Stable Diffusion 3 and Wan."
    DISPLAY_NAME = "ModelSamplingSD3"
    CATEGORY = "model/patch/stable diffusion"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "shift": (
                    "FLOAT",
                    {
                        "default": 3.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.01,
                        "tooltip": "Larger values spend more steps at high noise.",
                    },
                ),
            }
        }

    def patch(self, model: Any, shift: float, multiplier: float = 1000) -> tuple[Any]:
        sampling = comfy.model_sampling
        table = sampling.ModelSamplingDiscreteFlow
        return (_resampled(model, sampling.CONST, table, shift=shift, multiplier=multiplier),)


class ModelSamplingAuraFlow(ModelSamplingSD3):
    DESCRIPTION = "Shifts the noise levels of flow models such as AuraFlow and Lumina."
    DISPLAY_NAME = "ModelSamplingAuraFlow"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch_aura"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "shift": (
                    "FLOAT",
                    {
                        "default": 1.73,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.01,
                        "tooltip": "Larger values spend more steps at high noise.",
                    },
                ),
            }
        }

    def patch_aura(self, model: Any, shift: float) -> tuple[Any]:
        # These models count time from 0 to 1.
        return self.patch(model, shift, multiplier=1.0)


class ModelSamplingFlux:
    DESCRIPTION = "Shifts the noise levels of FLUX models by the size of the picture."
    DISPLAY_NAME = "ModelSamplingFlux"
    CATEGORY = "model/patch/flux"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "max_shift": (
                    "FLOAT",
                    {
                        "default": 1.15,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.01,
                        "advanced": True,
                        "tooltip": "Shift for 1024 x 1024 pixels.",
                    },
                ),
                "base_shift": (
                    "FLOAT",
                    {
                        "default": 0.5,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.01,
                        "advanced": True,
                        "tooltip": "Shift for 256 x 256 pixels.",
                    },
                ),
                "width": (
                    "INT",
                    {
                        "default": 1024,
                        "min": 16,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Width of the picture in pixels.",
                    },
                ),
                "height": (
                    "INT",
                    {
                        "default": 1024,
                        "min": 16,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Height of the picture in pixels.",
                    },
                ),
            }
        }

    def patch(self, model: Any, max_shift: float, base_shift: float, width: int, height: int) -> tuple[Any]:
        # A straight line through (256 patches, base_shift) and (4096 patches, max_shift); a patch has 16 x 16 pixels.
        slope = (max_shift - base_shift) / (4096 - 256)
        shift = (width * height / (16 * 16)) * slope + base_shift - slope * 256
        sampling = comfy.model_sampling
        return (_resampled(model, sampling.CONST, sampling.ModelSamplingFlux, shift=shift),)


class ModelSamplingLTXV(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ModelSamplingLTXV",
            category="model/patch/ltxv",
            description="Shifts the noise levels of LTX-Video by the size of the video.",
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "max_shift", tooltip="Shift for 4096 latent cells.", default=2.05, min=0.0, max=100.0, step=0.01
                ),
                io.Float.Input(
                    "base_shift", tooltip="Shift for 1024 latent cells.", default=0.95, min=0.0, max=100.0, step=0.01
                ),
                io.Latent.Input("latent", tooltip="Latents whose size decides; 4096 cells without.", optional=True),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, max_shift: float, base_shift: float, latent: dict | None = None) -> io.NodeOutput:
        sampling = comfy.model_sampling
        shift = ltxv_shift(latent, max_shift, base_shift)
        return io.NodeOutput(_resampled(model, sampling.CONST, sampling.ModelSamplingFlux, shift=shift))


class NotAFlowModelError(ValueError):
    """Only flow models have a scale of noise."""


class ModelNoiseScale:
    DESCRIPTION = "Sets how strong the noise was that a flow model was trained with."
    DISPLAY_NAME = "ModelNoiseScale"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "noise_scale": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 64.0,
                        "step": 0.01,
                        "tooltip": "Standard deviation of the noise; 1 for nearly all models.",
                    },
                ),
            }
        }

    def patch(self, model: Any, noise_scale: float) -> tuple[Any]:
        sampling = model.get_model_object("model_sampling")
        if not isinstance(sampling, comfy.model_sampling.CONST):
            raise NotAFlowModelError(f"a noise scale of {noise_scale:g} needs a flow model (such as SD3 or FLUX)")
        scaled = copy.copy(sampling)
        scaled.noise_scale = noise_scale
        patched = model.clone()
        patched.add_object_patch("model_sampling", scaled)
        return (patched,)


class RescaleCFG:
    DESCRIPTION = "Keeps strong guidance from burning out colours (Lin et al., 2023, section 3.4)."
    DISPLAY_NAME = "RescaleCFG"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "multiplier": (
                    "FLOAT",
                    {
                        "default": 0.7,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.01,
                        "tooltip": "How far to go: 0 not at all, 1 fully.",
                    },
                ),
            }
        }

    def patch(self, model: Any, multiplier: float) -> tuple[Any]:
        flow = isinstance(model.get_model_object("model_sampling"), comfy.model_sampling.CONST)

        def combine(positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
            guided = negative + scale * (positive - negative)
            axes = tuple(range(1, positive.ndim))
            deviation, wanted = (v.std(dim=axes, keepdim=True) for v in (guided, positive))
            return multiplier * (guided * (wanted / deviation)) + (1.0 - multiplier) * guided

        def rescale(args: dict) -> torch.Tensor:
            if flow:
                # Flow models have no v-prediction of this kind; their guesses of the clean latent serve as well.
                return args["input"] - combine(args["cond_denoised"], args["uncond_denoised"], args["cond_scale"])
            sigma = args["sigma"]
            sigma = sigma.view(sigma.shape[:1] + (1,) * (args["cond"].ndim - 1))
            noisy = args["input"]
            scale = sigma**2 + 1.0
            # The paper's statistics are those of v-predictions.
            start = noisy / scale
            positive, negative = ((start - (noisy - args[key])) * scale.sqrt() / sigma for key in ("cond", "uncond"))
            result = combine(positive, negative, args["cond_scale"])
            return noisy - (start - result * sigma / scale.sqrt())

        patched = model.clone()
        patched.set_model_sampler_cfg_function(rescale)
        return (patched,)


NODES = {
    "comfy_extras.nodes_model_advanced": [
        ModelSamplingSD3,
        ModelSamplingAuraFlow,
        ModelSamplingFlux,
        ModelNoiseScale,
        RescaleCFG,
    ],
    "comfy_extras.nodes_lt": [ModelSamplingLTXV],
}
