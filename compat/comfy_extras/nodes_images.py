"""Re-exports; see `nodes`."""

from nodes.image_batches import ImageFromBatch, RepeatImageBatch
from nodes.image_filters import ImageAddNoise
from nodes.image_output import SaveAnimatedPNG, SaveAnimatedWEBP, SaveImageAdvanced
from nodes.image_resize import ImageScaleToMaxDimension, ResizeAndPadImage
from nodes.image_tiles import ImageMergeTileList, SplitImageToTileList
from nodes.image_transform import (
    GetImageSize,
    ImageCrop,
    ImageCropV2,
    ImageFlip,
    ImageRotate,
    ImageStitch,
    PrimitiveBoundingBox,
)

__all__ = [
    "GetImageSize",
    "ImageAddNoise",
    "ImageCrop",
    "ImageCropV2",
    "ImageFlip",
    "ImageFromBatch",
    "ImageMergeTileList",
    "ImageRotate",
    "ImageScaleToMaxDimension",
    "ImageStitch",
    "PrimitiveBoundingBox",
    "RepeatImageBatch",
    "ResizeAndPadImage",
    "SaveAnimatedPNG",
    "SaveAnimatedWEBP",
    "SaveImageAdvanced",
    "SplitImageToTileList",
]
