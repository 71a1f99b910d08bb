"""Re-exports; see `nodes`."""

from nodes.differential_diffusion import DifferentialDiffusion

__all__ = ["DifferentialDiffusion"]
