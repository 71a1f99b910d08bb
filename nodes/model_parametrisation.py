"""Nodes that tell what a model predicts and over which noise levels, for files that do not say so themselves."""

from __future__ import annotations

from typing import Any

import comfy.latent_formats
import comfy.model_sampling

from .model_sampling import _resampled

SIGMA_LIMIT = {"min": 0.0, "max": 1000.0, "step": 0.001, "round": False, "advanced": True}


def _model_input() -> tuple:
    return ("MODEL", {"tooltip": "Model to change."})


class ModelSamplingDiscrete:
    DESCRIPTION = "Sets what a model with a thousand noise levels predicts."
    DISPLAY_NAME = "ModelSamplingDiscrete"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    PARAMETRISATIONS = {
        "eps": comfy.model_sampling.EPS,
        "v_prediction": comfy.model_sampling.V_PREDICTION,
        "lcm": comfy.model_sampling.LCM,
        "x0": comfy.model_sampling.X0,
        "img_to_img": comfy.model_sampling.IMG_TO_IMG,
        "img_to_img_flow": comfy.model_sampling.IMG_TO_IMG_FLOW,
    }

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": _model_input(),
                "sampling": (list(cls.PARAMETRISATIONS), {"tooltip": "What the network predicts."}),
                "zsnr": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "advanced": True,
                        "tooltip": "The strongest noise leaves nothing of the picture (zero terminal SNR).",
                    },
                ),
            }
        }

    def patch(self, model: Any, sampling: str, zsnr: bool) -> tuple[Any]:
        tables = comfy.model_sampling
        # Consistency models were distilled on every twentieth level.
        table = tables.ModelSamplingDiscreteDistilled if sampling == "lcm" else tables.ModelSamplingDiscrete
        kind = tables.combine(self.PARAMETRISATIONS[sampling], table)
        patched = model.clone()
        patched.add_object_patch("model_sampling", kind(model.model.model_config, zsnr=zsnr))
        return (patched,)


class ModelSamplingContinuousEDM:
    DESCRIPTION = "Sets what a model with a continuous range of noise levels predicts (Karras et al., 2022)."
    DISPLAY_NAME = "ModelSamplingContinuousEDM"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    # What the network predicts, and the spread of its data.
    PARAMETRISATIONS = {
        "v_prediction": (comfy.model_sampling.V_PREDICTION, 1.0),
        "edm": (comfy.model_sampling.EDM, 0.5),
        "edm_playground_v2.5": (comfy.model_sampling.EDM, 0.5),
        "eps": (comfy.model_sampling.EPS, 1.0),
        "cosmos_rflow": (comfy.model_sampling.COSMOS_RFLOW, 1.0),
    }

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": _model_input(),
                "sampling": (list(cls.PARAMETRISATIONS), {"tooltip": "What the network predicts."}),
                "sigma_max": ("FLOAT", {"default": 120.0, **SIGMA_LIMIT, "tooltip": "Strongest noise."}),
                "sigma_min": ("FLOAT", {"default": 0.002, **SIGMA_LIMIT, "tooltip": "Weakest noise."}),
            }
        }

    def patch(self, model: Any, sampling: str, sigma_max: float, sigma_min: float) -> tuple[Any]:
        tables = comfy.model_sampling
        parametrisation, spread = self.PARAMETRISATIONS[sampling]
        table = tables.ModelSamplingCosmosRFlow if sampling == "cosmos_rflow" else tables.ModelSamplingContinuousEDM
        patched = _resampled(model, parametrisation, table, sigma_min=sigma_min, sigma_max=sigma_max, sigma_data=spread)
        if sampling == "edm_playground_v2.5":
            patched.add_object_patch("latent_format", comfy.latent_formats.SDXL_Playground_2_5())
        return (patched,)


class ModelSamplingContinuousV:
    DESCRIPTION = "Sets the noise levels of models that predict velocity over a continuous range of them."
    DISPLAY_NAME = "ModelSamplingContinuousV"
    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": _model_input(),
                "sampling": (["v_prediction"], {"tooltip": "What the network predicts."}),
                "sigma_max": ("FLOAT", {"default": 500.0, **SIGMA_LIMIT, "tooltip": "Strongest noise."}),
                "sigma_min": ("FLOAT", {"default": 0.03, **SIGMA_LIMIT, "tooltip": "Weakest noise."}),
            }
        }

    def patch(self, model: Any, sampling: str, sigma_max: float, sigma_min: float) -> tuple[Any]:
        tables = comfy.model_sampling
        limits = {"sigma_min": sigma_min, "sigma_max": sigma_max, "sigma_data": 1.0}
        return (_resampled(model, tables.V_PREDICTION, tables.ModelSamplingContinuousV, **limits),)


class ModelSamplingStableCascade:
    DESCRIPTION = "Shifts the noise levels of Stable Cascade."
    DISPLAY_NAME = "ModelSamplingStableCascade"
    CATEGORY = "model/patch/stable cascade"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        shift = {"default": 2.0, "min": 0.0, "max": 100.0, "step": 0.01}
        return {
            "required": {
                "model": _model_input(),
                "shift": ("FLOAT", {**shift, "tooltip": "Larger values spend more steps at high noise."}),
            }
        }

    def patch(self, model: Any, shift: float) -> tuple[Any]:
        tables = comfy.model_sampling
        return (_resampled(model, tables.EPS, tables.StableCascadeSampling, shift=shift),)


NODES = {
    "comfy_extras.nodes_model_advanced": [
        ModelSamplingDiscrete,
        ModelSamplingContinuousEDM,
        ModelSamplingContinuousV,
        ModelSamplingStableCascade,
    ],
}
