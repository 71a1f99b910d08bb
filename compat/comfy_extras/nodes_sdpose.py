"""Re-exports; see `nodes`."""

from nodes.boxes import CropByBBoxes

__all__ = [
    "CropByBBoxes",
]
