"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyChromaRadianceLatentImage

__all__ = ["EmptyChromaRadianceLatentImage"]
