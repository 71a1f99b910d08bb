"""See `comfy.ldm`."""
