"""Re-exports; see `nodes`."""

from nodes.wan_camera import WanCameraEmbedding

__all__ = ["WanCameraEmbedding"]
