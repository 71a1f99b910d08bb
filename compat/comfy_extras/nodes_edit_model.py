"""Re-exports; see `nodes`."""

from nodes.model_conditioning import ReferenceLatent

__all__ = ["ReferenceLatent"]
