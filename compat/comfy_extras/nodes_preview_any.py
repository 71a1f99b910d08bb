"""Re-exports; see `nodes`."""

from nodes.primitives import PreviewAny

__all__ = ["PreviewAny"]
