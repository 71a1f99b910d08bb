"""Re-exports; see `nodes`."""

from nodes.primitives import SeedNode

__all__ = ["SeedNode"]
