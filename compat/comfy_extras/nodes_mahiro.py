"""Re-exports; see `nodes`."""

from nodes.guidance import Mahiro

__all__ = ["Mahiro"]
