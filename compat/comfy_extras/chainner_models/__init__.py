"""Re-exports; see `comfy.upscale_models`."""
