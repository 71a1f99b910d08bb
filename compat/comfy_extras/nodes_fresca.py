"""Re-exports; see `nodes`."""

from nodes.guidance_methods import FreSca

__all__ = ["FreSca"]
