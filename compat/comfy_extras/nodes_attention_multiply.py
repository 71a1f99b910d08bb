"""Re-exports; see `nodes`."""

from nodes.attention_weights import (
    CLIPAttentionMultiply,
    UNetCrossAttentionMultiply,
    UNetSelfAttentionMultiply,
    UNetTemporalAttentionMultiply,
)

__all__ = [
    "CLIPAttentionMultiply",
    "UNetCrossAttentionMultiply",
    "UNetSelfAttentionMultiply",
    "UNetTemporalAttentionMultiply",
]
