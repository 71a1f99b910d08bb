"""Re-exports; see `nodes`."""

from nodes.unet_patches import TomePatchModel

__all__ = ["TomePatchModel"]
