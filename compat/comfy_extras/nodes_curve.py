"""Re-exports; see `nodes`."""

from nodes.boxes import ImageHistogram
from nodes.curves import CurveEditor

__all__ = [
    "CurveEditor",
    "ImageHistogram",
]
