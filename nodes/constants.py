"""Limits and choice lists that several families share (values: spec/nodes.json)."""

# Largest width or height, in pixels, that an input accepts.
MAX_RESOLUTION = 16384
# Seeds are unsigned 64-bit numbers.
MAX_SEED = 0xFFFFFFFFFFFFFFFF

IMAGE_SCALE_METHODS = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]
LATENT_SCALE_METHODS = ["nearest-exact", "bilinear", "area", "bicubic", "bislerp"]
CROP_MODES = ["disabled", "center"]
