"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyQwenImageLayeredLatentImage

__all__ = ["EmptyQwenImageLayeredLatentImage"]
