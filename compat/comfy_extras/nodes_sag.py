"""Re-exports; see `nodes`."""

from nodes.attention_guidance import SelfAttentionGuidance

__all__ = ["SelfAttentionGuidance"]
