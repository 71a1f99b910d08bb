"""Re-exports; see `nodes`."""

from nodes.primitives import ColorToRGBInt

__all__ = ["ColorToRGBInt"]
