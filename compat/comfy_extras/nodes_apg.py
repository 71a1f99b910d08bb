"""Re-exports; see `nodes`."""

from nodes.projected_guidance import APG

__all__ = ["APG"]
