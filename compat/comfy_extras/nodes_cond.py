"""Re-exports; see `nodes`."""

from nodes.family_text import T5TokenizerOptions
from nodes.llm_text import CLIPTextEncodeControlnet

__all__ = ["CLIPTextEncodeControlnet", "T5TokenizerOptions"]
