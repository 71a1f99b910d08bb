"""Stable Diffusion 1's text side: CLIP ViT-L, its last hidden layer after the final norm, pooled without
projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.ops
from comfy.text_encoders.clip import CLIPTextConfig, config_from_state_dict
from comfy.text_encoders.clip_encoder import SDClipModel
from comfy.text_encoders.single import SingleEncoder, SingleTokenizer
from comfy.text_encoders.tokenizer import SDTokenizer


class SD1Tokenizer(SingleTokenizer):
    """Prompt -> {"l": chunks of CLIP tokens}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
        embedding_size: int = 768,
    ):
        super().__init__("l", clip_l_tokenizer(embedding_directory, tokenizer_data, embedding_size))


def clip_l_tokenizer(
    embedding_directory: str | Sequence[str] | None = None,
    tokenizer_data: dict[str, Any] | None = None,
    embedding_size: int = 768,
) -> SDTokenizer:
    """Chunks of 77, filled up with the end token."""
    return SDTokenizer(
        embedding_directory, embedding_size=embedding_size, embedding_key="clip_l", tokenizer_data=tokenizer_data
    )


class SD1ClipModel(SingleEncoder):
    """CLIP ViT-L as Stable Diffusion 1 uses it. Its weights are named `clip_l.transformer.text_model...`."""

    def __init__(
        self,
        config: CLIPTextConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        encoder = SDClipModel(
            config or CLIPTextConfig(), device=device, dtype=dtype, return_projected_pooled=False, operations=operations
        )
        super().__init__("l", encoder, dtype=dtype)


# Names below the encoder model: `clip_l.transformer.text_model...`.
_TRANSFORMER = "clip_l.transformer."


def build(
    sd: Mapping[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
) -> SD1ClipModel:
    """The encoder for weights named as the model names them; they are not loaded yet."""
    config = config_from_state_dict(sd, _TRANSFORMER)
    return SD1ClipModel(config, device=device, dtype=dtype, operations=operations)


def encoder_file_to_model(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a file with this encoder alone (`text_model...`), renamed to the encoder model's names."""
    return {_TRANSFORMER + k: v for k, v in sd.items() if not k.endswith("position_ids") and k != "logit_scale"}
