"""Re-exports; see `nodes`."""

from nodes.image_batches import RebatchImages

__all__ = ["RebatchImages"]
