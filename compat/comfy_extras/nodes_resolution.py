"""Re-exports; see `nodes`."""

from nodes.image_resize import ResolutionSelector

__all__ = ["ResolutionSelector"]
