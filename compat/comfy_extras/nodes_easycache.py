"""Re-exports; see `nodes`."""

from nodes.model_advanced import EasyCache, LazyCache

__all__ = ["EasyCache", "LazyCache"]
