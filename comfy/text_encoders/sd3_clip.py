"""Stable Diffusion 3's text side under the names that node packs import: `comfy.text_encoders.sd3`."""

from __future__ import annotations

from typing import Any

import torch

import comfy.ops
from comfy.faces import Face
from comfy.text_encoders import sd3
from comfy.text_encoders.sd3 import SD3Tokenizer
from comfy.text_encoders.sdxl import CLIP_G, CLIP_L
from comfy.text_encoders.t5 import T5Config
from comfy.text_encoders.t5_encoder import T5TextEncoder

__all__ = ["SD3ClipModel", "SD3Tokenizer", "T5XXLModel"]


def _operations(model_options: dict[str, Any] | None) -> Any:
    return (model_options or {}).get("custom_operations") or comfy.ops.manual_cast


class T5XXLModel(T5TextEncoder, metaclass=Face):
    """The encoder of T5 1.1 XXL. Its last layer is what is used, whatever `layer` and `layer_idx` say."""

    face = True

    def __init__(
        self,
        device: torch.device | str = "cpu",
        layer: str = "last",
        layer_idx: int | None = None,
        dtype: torch.dtype | None = None,
        attention_mask: bool = False,
        model_options: dict[str, Any] | None = None,
    ):
        options = {"operations": _operations(model_options), "use_mask": attention_mask, "return_mask": attention_mask}
        super().__init__(T5Config(), device=device, dtype=dtype, **options)


class SD3ClipModel(sd3.SD3ClipModel, metaclass=Face):
    """The encoders that are asked for; T5 in a dtype of its own."""

    face = True

    def __init__(
        self,
        clip_l: bool = True,
        clip_g: bool = True,
        t5: bool = True,
        dtype_t5: torch.dtype | None = None,
        t5_attention_mask: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        model_options: dict[str, Any] | None = None,
    ):
        clips = {"clip_l": CLIP_L if clip_l else None, "clip_g": CLIP_G if clip_g else None}
        super().__init__(**clips, device=device, dtype=dtype, operations=_operations(model_options))
        if t5:
            self.t5xxl = T5XXLModel(
                device, dtype=dtype_t5 or dtype, attention_mask=t5_attention_mask, model_options=model_options
            )
            self.dtypes.add(dtype_t5 or dtype)
