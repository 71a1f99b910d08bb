"""Re-exports; see `nodes`."""

from nodes.empty_latents import StableCascade_EmptyLatentImage

__all__ = ["StableCascade_EmptyLatentImage"]
