"""Re-exports; see `nodes`."""

from nodes.boxes import ImageHistogram

__all__ = [
    "ImageHistogram",
]
