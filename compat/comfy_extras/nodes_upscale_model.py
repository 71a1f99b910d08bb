"""Re-exports; see `nodes`."""

from nodes.upscale_models import ImageUpscaleWithModel, UpscaleModelLoader

__all__ = ["ImageUpscaleWithModel", "UpscaleModelLoader"]
