"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyLatentHunyuan3Dv2

__all__ = ["EmptyLatentHunyuan3Dv2"]
