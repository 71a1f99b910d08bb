"""Re-exports; see `nodes`."""

from nodes.video_files import CreateVideo, GetVideoComponents, LoadVideo, SaveVideo, SaveWEBM
from nodes.video_parts import VideoSlice

__all__ = ["CreateVideo", "GetVideoComponents", "LoadVideo", "SaveVideo", "SaveWEBM", "VideoSlice"]
