"""Re-exports; see `nodes`."""

from nodes.model_advanced import ScaleROPE

__all__ = ["ScaleROPE"]
