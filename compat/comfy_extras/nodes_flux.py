"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyFlux2LatentImage
from nodes.model_conditioning import (
    FluxDisableGuidance,
    FluxGuidance,
    FluxKontextImageScale,
    FluxKontextMultiReferenceLatentMethod,
)

__all__ = [
    "EmptyFlux2LatentImage",
    "FluxDisableGuidance",
    "FluxGuidance",
    "FluxKontextImageScale",
    "FluxKontextMultiReferenceLatentMethod",
]
