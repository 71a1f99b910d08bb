"""Re-exports; see `nodes`."""

from nodes.unet_patches import PatchModelAddDownscale

__all__ = ["PatchModelAddDownscale"]
