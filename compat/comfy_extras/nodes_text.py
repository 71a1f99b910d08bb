"""Re-exports; see `nodes`."""

from nodes.image_output import SaveText

__all__ = ["SaveText"]
