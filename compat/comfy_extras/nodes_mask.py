"""Re-exports; see `nodes`."""

from nodes.masks import (
    CropMask,
    FeatherMask,
    GrowMask,
    ImageColorToMask,
    ImageCompositeMasked,
    ImageToMask,
    InvertMask,
    LatentCompositeMasked,
    MaskComposite,
    MaskPreview,
    MaskToImage,
    SolidMask,
    ThresholdMask,
)
from nodes.paste import composite as composite

__all__ = [
    "CropMask",
    "FeatherMask",
    "GrowMask",
    "ImageColorToMask",
    "ImageCompositeMasked",
    "ImageToMask",
    "InvertMask",
    "LatentCompositeMasked",
    "MaskComposite",
    "MaskPreview",
    "MaskToImage",
    "SolidMask",
    "ThresholdMask",
    "composite",
]
