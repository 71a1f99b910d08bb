"""Re-exports; see `nodes`."""

from nodes.latent_batches import TrimVideoLatent
from nodes.wan import (
    Wan22ImageToVideoLatent,
    WanFirstLastFrameToVideo,
    WanFunInpaintToVideo,
    WanImageToVideo,
    WanPhantomSubjectToVideo,
)
from nodes.wan_camera import WanCameraImageToVideo
from nodes.wan_control import Wan22FunControlToVideo, WanFunControlToVideo, WanVaceToVideo

__all__ = [
    "TrimVideoLatent",
    "Wan22FunControlToVideo",
    "Wan22ImageToVideoLatent",
    "WanCameraImageToVideo",
    "WanFirstLastFrameToVideo",
    "WanFunControlToVideo",
    "WanFunInpaintToVideo",
    "WanImageToVideo",
    "WanPhantomSubjectToVideo",
    "WanVaceToVideo",
]
