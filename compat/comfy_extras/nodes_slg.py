"""Re-exports; see `nodes`."""

from nodes.attention_guidance import SkipLayerGuidanceDiT, SkipLayerGuidanceDiTSimple

__all__ = ["SkipLayerGuidanceDiT", "SkipLayerGuidanceDiTSimple"]
