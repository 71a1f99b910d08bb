"""Re-exports; see `comfy.upscale_models`."""

from comfy.upscale_models import load_state_dict

__all__ = ["load_state_dict"]
