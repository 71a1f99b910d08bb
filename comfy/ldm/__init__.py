"""Networks under the module names that node packs import them by; the networks are in `comfy.models`."""
