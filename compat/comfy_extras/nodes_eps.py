"""Re-exports; see `nodes`."""

from nodes.guidance import Epsilon_Scaling

__all__ = ["Epsilon_Scaling"]
