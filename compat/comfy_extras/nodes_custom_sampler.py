"""Re-exports; see `nodes`."""

from nodes.custom_sampling import (
    AddNoise,
    BasicGuider,
    CFGGuider,
    DisableNoise,
    DualCFGGuider,
    RandomNoise,
    SamplerCustom,
    SamplerCustomAdvanced,
)
from nodes.custom_sampling import NoNoise as Noise_EmptyNoise
from nodes.custom_sampling import OneConditionGuider as Guider_Basic
from nodes.custom_sampling import SeededNoise as Noise_RandomNoise
from nodes.guidance import CFGOverride
from nodes.guiders import DualModelGuider
from nodes.schedulers import (
    BasicScheduler,
    BetaSamplingScheduler,
    ExponentialScheduler,
    KarrasScheduler,
    LaplaceScheduler,
    PolyexponentialScheduler,
    SDTurboScheduler,
    VPScheduler,
)
from nodes.sigmas import (
    ExtendIntermediateSigmas,
    FlipSigmas,
    ManualSigmas,
    SamplingPercentToSigma,
    SetFirstSigma,
    SplitSigmas,
    SplitSigmasDenoise,
)
from nodes.solvers import (
    KSamplerSelect,
    SamplerDPMAdaptative,
    SamplerDPMPP_2M_SDE,
    SamplerDPMPP_2S_Ancestral,
    SamplerDPMPP_3M_SDE,
    SamplerDPMPP_SDE,
    SamplerER_SDE,
    SamplerEulerAncestral,
    SamplerEulerAncestralCFGPP,
    SamplerLMS,
    SamplerSASolver,
    SamplerSEEDS2,
)

__all__ = [
    "AddNoise",
    "BasicGuider",
    "BasicScheduler",
    "BetaSamplingScheduler",
    "CFGGuider",
    "CFGOverride",
    "DisableNoise",
    "DualCFGGuider",
    "DualModelGuider",
    "ExponentialScheduler",
    "ExtendIntermediateSigmas",
    "FlipSigmas",
    "Guider_Basic",
    "KSamplerSelect",
    "KarrasScheduler",
    "LaplaceScheduler",
    "ManualSigmas",
    "Noise_EmptyNoise",
    "Noise_RandomNoise",
    "PolyexponentialScheduler",
    "RandomNoise",
    "SDTurboScheduler",
    "SamplerCustom",
    "SamplerCustomAdvanced",
    "SamplerDPMAdaptative",
    "SamplerDPMPP_2M_SDE",
    "SamplerDPMPP_2S_Ancestral",
    "SamplerDPMPP_3M_SDE",
    "SamplerDPMPP_SDE",
    "SamplerER_SDE",
    "SamplerEulerAncestral",
    "SamplerEulerAncestralCFGPP",
    "SamplerLMS",
    "SamplerSASolver",
    "SamplerSEEDS2",
    "SamplingPercentToSigma",
    "SetFirstSigma",
    "SplitSigmas",
    "SplitSigmasDenoise",
    "VPScheduler",
]
