"""Re-exports; see `nodes`."""

from nodes.text_generation import TextGenerate

__all__ = ["TextGenerate"]
