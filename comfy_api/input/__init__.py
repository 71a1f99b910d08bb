"""The older name of `comfy_api.latest.Input`."""

from comfy_api.latest._input import AudioInput, ImageInput, LatentInput, MaskInput, VideoInput

__all__ = ["AudioInput", "ImageInput", "LatentInput", "MaskInput", "VideoInput"]
