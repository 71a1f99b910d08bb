"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyCosmosLatentVideo

__all__ = ["EmptyCosmosLatentVideo"]
