"""Re-exports; see `nodes`."""

from nodes.attention_guidance import SkipLayerGuidanceSD3
from nodes.controlnet import ControlNetApplySD3
from nodes.empty_latents import EmptySD3LatentImage
from nodes.family_text import CLIPTextEncodeSD3, TripleCLIPLoader

__all__ = [
    "CLIPTextEncodeSD3",
    "ControlNetApplySD3",
    "EmptySD3LatentImage",
    "SkipLayerGuidanceSD3",
    "TripleCLIPLoader",
]
