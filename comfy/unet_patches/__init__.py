"""Changes to what a UNet computes, as functions for its patches (see `comfy.models.unet`, `comfy.models.attention`)."""
