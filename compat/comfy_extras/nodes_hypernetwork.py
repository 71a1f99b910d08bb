"""Re-exports; see `nodes`."""

from nodes.hypernetworks import HypernetworkLoader

__all__ = ["HypernetworkLoader"]
