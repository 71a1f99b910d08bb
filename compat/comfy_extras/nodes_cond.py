"""Re-exports; see `nodes`."""

from nodes.family_text import T5TokenizerOptions

__all__ = ["T5TokenizerOptions"]
