"""The transformers of Wan: `comfy.models.wan`, its classes under the names that packs patch them by."""

import torch
from torch import Tensor

import comfy.models.wan
from comfy.faces import mirror
from comfy.models.unet_blocks import timestep_embedding
from comfy.models.wan import Block as WanAttentionBlock
from comfy.models.wan import I2VCrossAttention as WanI2VCrossAttention
from comfy.models.wan import SelfAttention as WanSelfAttention
from comfy.models.wan import T2VCrossAttention as WanT2VCrossAttention
from comfy.models.wan import Wan as WanModel

__all__ = [
    "WanAttentionBlock",
    "WanI2VCrossAttention",
    "WanModel",
    "WanSelfAttention",
    "WanT2VCrossAttention",
    "sinusoidal_embedding_1d",
]


def sinusoidal_embedding_1d(dim: int, position: Tensor) -> Tensor:
    """Sinusoids [n, dim] = cat(cos, sin) of positions [n], in float32; dim even, else ValueError."""
    if dim % 2:
        raise ValueError(f"dim is {dim}, an even number was expected")
    return timestep_embedding(position.to(torch.float32), dim)


mirror(__name__, comfy.models.wan)
