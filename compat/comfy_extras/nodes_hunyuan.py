"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyHunyuanImageLatent, EmptyHunyuanLatentVideo, EmptyHunyuanVideo15Latent

__all__ = ["EmptyHunyuanImageLatent", "EmptyHunyuanLatentVideo", "EmptyHunyuanVideo15Latent"]
