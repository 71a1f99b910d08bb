"""Re-exports; see `nodes`."""

from nodes.guidance import DifferentialDiffusion

__all__ = ["DifferentialDiffusion"]
