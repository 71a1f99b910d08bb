"""The older name of `comfy_api.latest.InputImpl`."""

from comfy_api.latest._input_impl import VideoFromComponents, VideoFromFile

__all__ = ["VideoFromComponents", "VideoFromFile"]
