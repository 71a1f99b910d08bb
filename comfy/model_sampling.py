"""A model's sampling object: a parametrisation (what the network predicts) mixed into a sigma table.

The face that the ecosystem imports; the parts live in `comfy.sampling.parametrisation` and
`comfy.sampling.sigma_tables`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from torch import nn

from comfy.sampling.parametrisation import (
    CONST,
    COSMOS_RFLOW,
    EDM,
    EPS,
    IMG_TO_IMG,
    IMG_TO_IMG_FLOW,
    LCM,
    V_PREDICTION,
    V_PREDICTION_DDPM,
    X0,
    reshape_sigma,
)
from comfy.sampling.sigma_tables import (
    ModelSamplingContinuousEDM,
    ModelSamplingContinuousV,
    ModelSamplingCosmosRFlow,
    ModelSamplingDiscrete,
    ModelSamplingDiscreteDistilled,
    ModelSamplingDiscreteEDM,
    ModelSamplingDiscreteFlow,
    ModelSamplingFlux,
    SamplingSettingsError,
    StableCascadeSampling,
    flux_time_shift,
    rescale_zero_terminal_snr_sigmas,
    time_snr_shift,
)

__all__ = [
    "CONST",
    "COSMOS_RFLOW",
    "EDM",
    "EPS",
    "IMG_TO_IMG",
    "IMG_TO_IMG_FLOW",
    "LCM",
    "V_PREDICTION",
    "V_PREDICTION_DDPM",
    "X0",
    "ModelSamplingContinuousEDM",
    "ModelSamplingContinuousV",
    "ModelSamplingCosmosRFlow",
    "ModelSamplingDiscrete",
    "ModelSamplingDiscreteDistilled",
    "ModelSamplingDiscreteEDM",
    "ModelSamplingDiscreteFlow",
    "ModelSamplingFlux",
    "ModelType",
    "SamplingSettingsError",
    "StableCascadeSampling",
    "combine",
    "flux_time_shift",
    "model_sampling",
    "rescale_zero_terminal_snr_sigmas",
    "reshape_sigma",
    "time_snr_shift",
]


class ModelType(Enum):
    """What kind of diffusion model a checkpoint holds."""

    EPS = 1
    V_PREDICTION = 2
    V_PREDICTION_EDM = 3
    STABLE_CASCADE = 4
    EDM = 5
    FLOW = 6
    V_PREDICTION_CONTINUOUS = 7
    FLUX = 8
    IMG_TO_IMG = 9
    FLOW_COSMOS = 10
    IMG_TO_IMG_FLOW = 11
    V_PREDICTION_DDPM = 12
    FLOW_AV = 13


_PARTS: dict[ModelType, tuple[type, type]] = {
    ModelType.EPS: (EPS, ModelSamplingDiscrete),
    ModelType.V_PREDICTION: (V_PREDICTION, ModelSamplingDiscrete),
    ModelType.V_PREDICTION_EDM: (V_PREDICTION, ModelSamplingContinuousEDM),
    ModelType.V_PREDICTION_CONTINUOUS: (V_PREDICTION, ModelSamplingContinuousV),
    ModelType.V_PREDICTION_DDPM: (V_PREDICTION_DDPM, ModelSamplingDiscrete),
    ModelType.STABLE_CASCADE: (EPS, StableCascadeSampling),
    ModelType.EDM: (EDM, ModelSamplingContinuousEDM),
    ModelType.FLOW: (CONST, ModelSamplingDiscreteFlow),
    ModelType.FLOW_AV: (CONST, ModelSamplingDiscreteFlow),
    ModelType.FLUX: (CONST, ModelSamplingFlux),
    ModelType.FLOW_COSMOS: (COSMOS_RFLOW, ModelSamplingCosmosRFlow),
    ModelType.IMG_TO_IMG: (IMG_TO_IMG, ModelSamplingDiscrete),
    ModelType.IMG_TO_IMG_FLOW: (IMG_TO_IMG_FLOW, ModelSamplingDiscreteFlow),
}


def combine(parametrisation: type, table: type) -> type[nn.Module]:
    """The class that has both: `parametrisation`'s methods on `table`'s sigmas."""
    return type("ModelSampling", (table, parametrisation), {"__module__": __name__})


def model_sampling(model_config: Any, model_type: ModelType) -> nn.Module:
    """The sampling object of a model.

    `model_config.sampling_settings` holds the table's parameters. Raises SamplingSettingsError for a type
    that is none of ModelType or for settings that make no table.
    """
    try:
        parts = _PARTS[model_type]
    except KeyError:
        raise SamplingSettingsError(f"model type {model_type!r} has no sampling") from None
    return combine(*parts)(model_config)
