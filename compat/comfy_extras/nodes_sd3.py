"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptySD3LatentImage

__all__ = ["EmptySD3LatentImage"]
