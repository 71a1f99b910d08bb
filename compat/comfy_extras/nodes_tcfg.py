"""Re-exports; see `nodes`."""

from nodes.guidance_methods import TCFG

__all__ = ["TCFG"]
