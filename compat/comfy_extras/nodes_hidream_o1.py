"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyHiDreamO1LatentImage

__all__ = ["EmptyHiDreamO1LatentImage"]
