"""Re-exports; see `nodes`."""

from nodes.primitives import CreateList

__all__ = ["CreateList"]
