"""Re-exports; see `nodes`."""

from nodes.guidance import Epsilon_Scaling
from nodes.guidance_methods import TemporalScoreRescaling

__all__ = ["Epsilon_Scaling", "TemporalScoreRescaling"]
