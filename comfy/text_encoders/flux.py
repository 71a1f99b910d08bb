"""FLUX.1's text side: T5-XXL's tokens, and CLIP ViT-L's pooled vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.text_encoders import t5
from comfy.text_encoders.clip import CLIPTextConfig
from comfy.text_encoders.clip_encoder import Chunk, SDClipModel
from comfy.text_encoders.sd1 import clip_l_tokenizer
from comfy.text_encoders.sdxl import CLIP_L, clip_configs
from comfy.text_encoders.single import IncompatibleKeys, load_one_of
from comfy.text_encoders.t5_encoder import T5TextEncoder, T5Tokenizer

MIN_TOKENS = 256


class FluxTokenizer:
    """Prompt -> {"l": chunks, "t5xxl": one chunk}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        self.clip_l = clip_l_tokenizer(embedding_directory, tokenizer_data)
        self.t5xxl = T5Tokenizer(embedding_directory, tokenizer_data, min_length=MIN_TOKENS)

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`."""
        options = tokenizer_options or {}
        return {
            "l": self.clip_l.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs),
            "t5xxl": self.t5xxl.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs),
        }

    def state_dict(self) -> dict[str, Tensor]:
        return self.t5xxl.state_dict()


class FluxClipModel(nn.Module):
    """Both encoders. Weights are named `clip_l.transformer...` and `t5xxl.transformer...`."""

    def __init__(
        self,
        clip_l: CLIPTextConfig = CLIP_L,
        t5xxl: t5.T5Config | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype, "operations": operations}
        self.clip_l = SDClipModel(clip_l, return_projected_pooled=False, **factory)
        self.t5xxl = T5TextEncoder(t5xxl or t5.T5Config(), **factory)
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """The choice of a layer has no effect: of CLIP only the pooled vector is used."""

    def reset_clip_options(self) -> None:
        pass

    def load_sd(self, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
        """Take the weights of one encoder out of its own file; see `load_one_of`."""
        return load_one_of(self, sd)

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple[Tensor, Tensor | None]:
        """T5's tokens [1, tokens, 4096] and CLIP's pooled vector, not projected."""
        tokens, *_ = self.t5xxl.encode_token_weights(token_weight_pairs["t5xxl"])
        _, pooled = self.clip_l.encode_token_weights(token_weight_pairs["l"])
        return tokens, pooled


def build(sd: Mapping[str, Tensor], **kwargs: Any) -> FluxClipModel:
    """The encoders for weights named as the model names them; they are not loaded yet."""
    return FluxClipModel(
        **clip_configs(sd, "clip_l"), t5xxl=t5.config_from_state_dict(sd, "t5xxl.transformer."), **kwargs
    )
