"""Re-exports; see `nodes`."""

from nodes.attention_guidance import PerturbedAttentionGuidance

__all__ = ["PerturbedAttentionGuidance"]
