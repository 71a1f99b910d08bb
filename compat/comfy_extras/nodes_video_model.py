"""Re-exports; see `nodes`."""

from nodes.guidance import VideoLinearCFGGuidance, VideoTriangleCFGGuidance
from nodes.model_conditioning import ConditioningSetAreaPercentageVideo
from nodes.view_models import ImageOnlyCheckpointLoader, ImageOnlyCheckpointSave, SVD_img2vid_Conditioning

__all__ = [
    "ConditioningSetAreaPercentageVideo",
    "ImageOnlyCheckpointLoader",
    "ImageOnlyCheckpointSave",
    "SVD_img2vid_Conditioning",
    "VideoLinearCFGGuidance",
    "VideoTriangleCFGGuidance",
]
