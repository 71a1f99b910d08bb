"""Re-exports; see `nodes`."""

from nodes.unet_patches import HyperTile

__all__ = ["HyperTile"]
