"""Re-exports; see `nodes`."""

from nodes.video_files import CreateVideo, GetVideoComponents, LoadVideo, SaveVideo

__all__ = ["CreateVideo", "GetVideoComponents", "LoadVideo", "SaveVideo"]
