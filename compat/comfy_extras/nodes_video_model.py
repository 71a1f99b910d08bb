"""Re-exports; see `nodes`."""

from nodes.guidance import VideoLinearCFGGuidance, VideoTriangleCFGGuidance
from nodes.model_conditioning import ConditioningSetAreaPercentageVideo

__all__ = ["ConditioningSetAreaPercentageVideo", "VideoLinearCFGGuidance", "VideoTriangleCFGGuidance"]
