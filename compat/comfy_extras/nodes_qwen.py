"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyQwenImageLayeredLatentImage
from nodes.picture_text import TextEncodeQwenImageEdit, TextEncodeQwenImageEditPlus

__all__ = ["EmptyQwenImageLayeredLatentImage", "TextEncodeQwenImageEdit", "TextEncodeQwenImageEditPlus"]
