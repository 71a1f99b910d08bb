"""Re-exports; see `nodes`."""

from nodes.picture_upscaler import SD_4XUpscale_Conditioning

__all__ = ["SD_4XUpscale_Conditioning"]
