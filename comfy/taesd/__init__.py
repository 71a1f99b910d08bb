"""The tiny autoencoders under the names that node packs import; see `comfy.vae.taesd`."""
