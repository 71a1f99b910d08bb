"""Re-exports; see `nodes`."""

from nodes.unet_patches import FreeU, FreeU_V2

__all__ = ["FreeU", "FreeU_V2"]
