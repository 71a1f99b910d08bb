"""Stable Diffusion 2's text side: CLIP ViT-H, the layer before the last, after the final norm."""

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

# open_clip fills up with zeros, which stand for "!", where OpenAI's CLIP repeats the end token.
PAD_TOKEN = 0
CLIP_H = CLIPTextConfig(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, hidden_act="gelu"
)


def special_tokens(config: CLIPTextConfig) -> dict[str, int]:
    """Start, end and padding of encoders from open_clip."""
    return {"start": config.eos_token_id - 1, "end": config.eos_token_id, "pad": PAD_TOKEN}


class SD2Tokenizer(SingleTokenizer):
    """Prompt -> {"h": chunks of CLIP tokens}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        tokenizer = SDTokenizer(
            embedding_directory,
            embedding_size=CLIP_H.hidden_size,
            embedding_key="clip_h",
            pad_token=PAD_TOKEN,
            tokenizer_data=tokenizer_data,
        )
        super().__init__("h", tokenizer)


class SD2ClipModel(SingleEncoder):
    """CLIP ViT-H as Stable Diffusion 2 uses it. Its weights are named `clip_h.transformer.text_model...`."""

    def __init__(
        self,
        config: CLIPTextConfig = CLIP_H,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        encoder = SDClipModel(
            config,
            device=device,
            dtype=dtype,
            layer="hidden",
            layer_idx=-2,
            special_tokens=special_tokens(config),
            operations=operations,
        )
        super().__init__("h", encoder, dtype=dtype)


def build(
    sd: Mapping[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
) -> SD2ClipModel:
    """The encoder for weights named as the model names them; they are not loaded yet."""
    config = config_from_state_dict(sd, "clip_h.transformer.", hidden_act="gelu")
    return SD2ClipModel(config, device=device, dtype=dtype, operations=operations)
