"""Re-exports; see `nodes`."""

from nodes.family_text import CLIPTextEncodePixArtAlpha

__all__ = ["CLIPTextEncodePixArtAlpha"]
