"""Re-exports; see `nodes`."""

from nodes.image_output import ImageCompare

__all__ = ["ImageCompare"]
