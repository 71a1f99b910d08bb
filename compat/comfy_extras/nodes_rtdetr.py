"""Re-exports; see `nodes`."""

from nodes.boxes import DrawBBoxes

__all__ = [
    "DrawBBoxes",
]
