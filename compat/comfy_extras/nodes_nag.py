"""Re-exports; see `nodes`."""

from nodes.normalized_attention import NAGuidance

__all__ = ["NAGuidance"]
