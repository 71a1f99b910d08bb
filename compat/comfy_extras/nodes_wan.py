"""Re-exports; see `nodes`."""

from nodes.latent_batches import TrimVideoLatent

__all__ = ["TrimVideoLatent"]
