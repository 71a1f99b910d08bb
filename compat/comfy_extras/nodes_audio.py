"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyLatentAudio

__all__ = ["EmptyLatentAudio"]
