"""Re-exports; see `nodes`."""

from nodes.guidance import PerpNegGuider

__all__ = ["PerpNegGuider"]
