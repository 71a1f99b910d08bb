"""Re-exports; see `nodes`."""

from nodes.guidance_methods import RenormCFG
from nodes.llm_text import CLIPTextEncodeLumina2

__all__ = ["CLIPTextEncodeLumina2", "RenormCFG"]
