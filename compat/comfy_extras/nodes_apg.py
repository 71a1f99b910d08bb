"""Re-exports; see `nodes`."""

from nodes.guidance import APG

__all__ = ["APG"]
