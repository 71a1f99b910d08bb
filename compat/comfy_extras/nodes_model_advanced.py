"""Re-exports; see `nodes`."""

from comfy.model_sampling import LCM as LCM
from comfy.model_sampling import ModelSamplingDiscreteDistilled as ModelSamplingDiscreteDistilled
from comfy.sampling.sigma_tables import rescale_zero_terminal_snr_sigmas as rescale_zero_terminal_snr_sigmas
from nodes.model_advanced import ModelAttentionBackend, ModelComputeDtype
from nodes.model_parametrisation import (
    ModelSamplingContinuousEDM,
    ModelSamplingContinuousV,
    ModelSamplingDiscrete,
    ModelSamplingStableCascade,
)
from nodes.model_sampling import (
    ModelNoiseScale,
    ModelSamplingAuraFlow,
    ModelSamplingFlux,
    ModelSamplingSD3,
    RescaleCFG,
)

__all__ = [
    "LCM",
    "ModelAttentionBackend",
    "ModelComputeDtype",
    "ModelNoiseScale",
    "ModelSamplingAuraFlow",
    "ModelSamplingContinuousEDM",
    "ModelSamplingContinuousV",
    "ModelSamplingDiscrete",
    "ModelSamplingDiscreteDistilled",
    "ModelSamplingFlux",
    "ModelSamplingSD3",
    "ModelSamplingStableCascade",
    "RescaleCFG",
    "rescale_zero_terminal_snr_sigmas",
]
