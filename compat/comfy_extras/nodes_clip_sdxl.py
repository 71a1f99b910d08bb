"""Re-exports; see `nodes`."""

from nodes.family_text import CLIPTextEncodeSDXL, CLIPTextEncodeSDXLRefiner

__all__ = ["CLIPTextEncodeSDXL", "CLIPTextEncodeSDXLRefiner"]
