"""Attention and spatial transformers: `comfy.models.attention` and, for videos, `comfy.models.video_blocks`."""

import comfy.models.attention
from comfy.faces import mirror
from comfy.models.attention import attention_pytorch
from comfy.models.video_blocks import SpatialVideoTransformer

__all__ = ["SpatialVideoTransformer"]

# One function for all: torch picks the kernel, sliced and sub-quadratic ones for want of memory included.
attention_basic = attention_split = attention_sub_quad = attention_pytorch
attention_xformers = attention_flash = attention_sage = attention_pytorch

mirror(__name__, comfy.models.attention)
