"""Re-exports; see `nodes`."""

from nodes.edges import Canny

__all__ = ["Canny"]
