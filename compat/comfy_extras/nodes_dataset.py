"""Re-exports; see `nodes`."""

from nodes.image_lists import (
    AdjustBrightness,
    AdjustContrast,
    CenterCropImages,
    ImageDeduplication,
    ImageGrid,
    MergeImageLists,
    NormalizeImages,
    RandomCropImages,
    ResizeImagesByLongerEdge,
    ResizeImagesByShorterEdge,
    ShuffleDataset,
    ShuffleImageTextDataset,
)
from nodes.text_lists import (
    AddTextPrefix,
    AddTextSuffix,
    MergeTextLists,
    ReplaceText,
    StripWhitespace,
    TextToLowercase,
    TextToUppercase,
    TruncateText,
)
from nodes.video_parts import VideoFrameSample, VideoTemporalCrop

__all__ = [
    "AddTextPrefix",
    "AddTextSuffix",
    "AdjustBrightness",
    "AdjustContrast",
    "CenterCropImages",
    "ImageDeduplication",
    "ImageGrid",
    "MergeImageLists",
    "MergeTextLists",
    "NormalizeImages",
    "RandomCropImages",
    "ReplaceText",
    "ResizeImagesByLongerEdge",
    "ResizeImagesByShorterEdge",
    "ShuffleDataset",
    "ShuffleImageTextDataset",
    "StripWhitespace",
    "TextToLowercase",
    "TextToUppercase",
    "TruncateText",
    "VideoFrameSample",
    "VideoTemporalCrop",
]
