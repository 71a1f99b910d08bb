"""Re-exports; see `nodes`."""

from nodes.guidance_methods import RenormCFG

__all__ = ["RenormCFG"]
