"""Re-exports; see `nodes`."""

from nodes.custom_sampling import NoNoise as Noise_EmptyNoise
from nodes.custom_sampling import OneConditionGuider as Guider_Basic
from nodes.custom_sampling import SeededNoise as Noise_RandomNoise
from nodes.sigmas import (
    ExtendIntermediateSigmas,
    FlipSigmas,
    ManualSigmas,
    SamplingPercentToSigma,
    SetFirstSigma,
    SplitSigmas,
    SplitSigmasDenoise,
)

__all__ = [
    "ExtendIntermediateSigmas",
    "FlipSigmas",
    "Guider_Basic",
    "ManualSigmas",
    "Noise_EmptyNoise",
    "Noise_RandomNoise",
    "SamplingPercentToSigma",
    "SetFirstSigma",
    "SplitSigmas",
    "SplitSigmasDenoise",
]
