"""Small helpers of latent diffusion code."""

from comfy.models.attention import default, exists

__all__ = ["default", "exists"]
