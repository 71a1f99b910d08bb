"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyFlux2LatentImage
from nodes.family_text import CLIPTextEncodeFlux
from nodes.model_conditioning import (
    FluxDisableGuidance,
    FluxGuidance,
    FluxKontextImageScale,
    FluxKontextMultiReferenceLatentMethod,
)
from nodes.model_schedulers import Flux2Scheduler
from nodes.reference_cache import FluxKVCache

__all__ = [
    "CLIPTextEncodeFlux",
    "EmptyFlux2LatentImage",
    "Flux2Scheduler",
    "FluxDisableGuidance",
    "FluxGuidance",
    "FluxKVCache",
    "FluxKontextImageScale",
    "FluxKontextMultiReferenceLatentMethod",
]
