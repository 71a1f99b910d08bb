"""Re-exports; see `nodes`."""

from nodes.model_merging import FAMILY_NODES

globals().update(FAMILY_NODES)

__all__ = list(FAMILY_NODES)
