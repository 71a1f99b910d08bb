"""The older name of `comfy_api.latest.Types`."""

from comfy_api.latest._types import VideoCodec, VideoComponents, VideoContainer

__all__ = ["VideoCodec", "VideoComponents", "VideoContainer"]
