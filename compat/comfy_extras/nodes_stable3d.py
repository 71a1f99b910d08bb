"""Re-exports; see `nodes`."""

from nodes.view_models import StableZero123_Conditioning, StableZero123_Conditioning_Batched

__all__ = ["StableZero123_Conditioning", "StableZero123_Conditioning_Batched"]
