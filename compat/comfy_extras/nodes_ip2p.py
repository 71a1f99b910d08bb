"""Re-exports; see `nodes`."""

from nodes.model_conditioning import InstructPixToPixConditioning

__all__ = ["InstructPixToPixConditioning"]
