"""Re-exports; see `nodes`."""

from nodes.primitives import ComfyNumberConvert

__all__ = ["ComfyNumberConvert"]
