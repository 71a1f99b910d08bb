"""Re-exports; see `nodes`."""

from nodes.image_filters import ImageRGBToYUV, ImageYUVToRGB, Morphology

__all__ = ["ImageRGBToYUV", "ImageYUVToRGB", "Morphology"]
