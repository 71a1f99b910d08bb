"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyTrellis2LatentStructure

__all__ = ["EmptyTrellis2LatentStructure"]
