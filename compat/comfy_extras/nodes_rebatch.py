"""Re-exports; see `nodes`."""

from nodes.image_batches import RebatchImages
from nodes.latent_batches import RebatchLatents

__all__ = ["RebatchImages", "RebatchLatents"]
