"""Re-exports; see `nodes`."""

from nodes.llm_text import CLIPTextEncodeHiDream, QuadrupleCLIPLoader

__all__ = ["CLIPTextEncodeHiDream", "QuadrupleCLIPLoader"]
