"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyMochiLatentVideo

__all__ = ["EmptyMochiLatentVideo"]
