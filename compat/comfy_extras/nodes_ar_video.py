"""Re-exports; see `nodes`."""

from nodes.empty_latents import EmptyARVideoLatent

__all__ = ["EmptyARVideoLatent"]
