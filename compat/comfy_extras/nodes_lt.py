"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyLTXVLatentVideo

__all__ = ["EmptyLTXVLatentVideo"]
