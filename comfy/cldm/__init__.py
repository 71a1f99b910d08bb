"""Module names that node packs import; the networks are in `comfy.models`."""
