"""Re-exports; see `nodes`."""

from nodes.guidance import CFGNorm, CFGZeroStar

__all__ = ["CFGNorm", "CFGZeroStar"]
