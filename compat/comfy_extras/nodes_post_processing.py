"""Re-exports; see `nodes`."""

from nodes.color_transfer import ColorTransfer
from nodes.image_batches import BatchImagesNode, BatchMasksNode
from nodes.image_filters import ImageBlend, ImageBlur, ImageQuantize, ImageSharpen
from nodes.image_resize import ImageScaleToTotalPixels, ResizeImageMaskNode
from nodes.latent_math import BatchLatentsNode

__all__ = [
    "BatchImagesNode",
    "BatchLatentsNode",
    "BatchMasksNode",
    "ColorTransfer",
    "ImageBlend",
    "ImageBlur",
    "ImageQuantize",
    "ImageScaleToTotalPixels",
    "ImageSharpen",
    "ResizeImageMaskNode",
]
