"""HiDream-I1's text side: pooled vectors of both CLIP encoders, T5's tokens, and every layer of Llama 3.1.

Source: Cai et al. 2025, "HiDream-I1" and its pipeline (MIT). Any of the encoders may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.text_encoders import t5
from comfy.text_encoders.clip import CLIPTextConfig
from comfy.text_encoders.clip_encoder import Chunk, SDClipModel
from comfy.text_encoders.llama import LlamaConfig, config_from_state_dict
from comfy.text_encoders.llm_encoder import ALL, LLMTextEncoder, LLMTokenizer
from comfy.text_encoders.sdxl import SDXLClipG, SDXLTokenizer, clip_configs
from comfy.text_encoders.t5_encoder import T5TextEncoder, T5Tokenizer

LENGTH = 128
LLAMA_START, LLAMA_PAD = 128000, 128009
LLAMA_LAYERS, LLAMA_WIDTH, T5_WIDTH = 32, 4096, 4096
CLIP_WIDTHS = {"clip_l": 768, "clip_g": 1280}


class HiDreamTokenizer(SDXLTokenizer):
    """Prompt -> {"g": chunks, "l": chunks, "t5xxl": one chunk, "llama": one chunk}. Of encoders that are not loaded the
    vocabulary is not looked for, and their tokens are left out."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        super().__init__(embedding_directory, tokenizer_data)
        data = tokenizer_data or {}
        self.with_t5, self.with_llama = data.get("with_t5", True), data.get("with_llama", True)
        self.t5xxl = T5Tokenizer(embedding_directory, data, min_length=LENGTH)
        self.llama = LLMTokenizer(
            embedding_directory,
            {**data, "spiece_model": None},
            vocabulary="llama3",
            embedding_size=LLAMA_WIDTH,
            embedding_key="llama",
            start_token=LLAMA_START,
            pad_token=LLAMA_PAD,
            min_length=LENGTH,
        )

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`."""
        options = tokenizer_options or {}
        out = super().tokenize_with_weights(text, return_word_ids, options, **kwargs)
        for name, wanted in (("t5xxl", self.with_t5), ("llama", self.with_llama)):
            if wanted:
                tokenizer = getattr(self, name)
                out[name] = tokenizer.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)
        return out

    def state_dict(self) -> dict[str, Tensor]:
        return self.t5xxl.state_dict()


class HiDreamTEModel(nn.Module):
    """The encoders there are. Weights: `clip_l.transformer...`, `clip_g...`, `t5xxl...`, `llama...`."""

    def __init__(
        self,
        clip_l: CLIPTextConfig | None = None,
        clip_g: CLIPTextConfig | None = None,
        t5xxl: t5.T5Config | None = None,
        llama: LlamaConfig | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype, "operations": operations}
        self.clip_l = None if clip_l is None else SDClipModel(clip_l, **factory)
        self.clip_g = None if clip_g is None else SDXLClipG(clip_g, **factory)
        self.t5xxl = None if t5xxl is None else T5TextEncoder(t5xxl, use_mask=True, **factory)
        special = {"start": LLAMA_START, "pad": LLAMA_PAD}
        self.llama = None if llama is None else LLMTextEncoder(llama, ALL, special, **factory)
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """The choice of a layer has no effect: of CLIP only the pooled vectors are used."""

    def reset_clip_options(self) -> None:
        pass

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        """T5's tokens [1, tokens, 4096], the pooled vectors side by side [1, 2048], and as `conditioning_llama3` what
        comes out of Llama's layers [1, layers, tokens, 4096]. In place of a missing encoder's there are zeros."""
        device = comfy.model_management.intermediate_device()
        pooled = []
        for encoder, name, width in ((self.clip_l, "l", "clip_l"), (self.clip_g, "g", "clip_g")):
            if encoder is None or not token_weight_pairs.get(name):
                pooled.append(torch.zeros(1, CLIP_WIDTHS[width], device=device))
            else:
                pooled.append(encoder.encode_token_weights(token_weight_pairs[name])[1])
        cond = torch.zeros(1, LENGTH, T5_WIDTH, device=device)
        if self.t5xxl is not None and token_weight_pairs.get("t5xxl"):
            cond = self.t5xxl.encode_token_weights(token_weight_pairs["t5xxl"])[0]
        layers = torch.zeros(1, LLAMA_LAYERS, 1, LLAMA_WIDTH, device=device)
        if self.llama is not None and token_weight_pairs.get("llama"):
            layers = self.llama.encode_token_weights(token_weight_pairs["llama"])[0]
        return cond, torch.cat(pooled, dim=-1), {"conditioning_llama3": layers}


def build(sd: Mapping[str, Tensor], **kwargs: Any) -> HiDreamTEModel:
    """The encoders for weights named as the model names them; they are not loaded yet."""
    found = {name for name in ("clip_l", "clip_g", "t5xxl", "llama") if any(k.startswith(f"{name}.") for k in sd)}
    configs: dict[str, Any] = clip_configs(sd, *(name for name in ("clip_l", "clip_g") if name in found))
    if "t5xxl" in found:
        configs["t5xxl"] = t5.config_from_state_dict(sd, "t5xxl.transformer.")
    if "llama" in found:
        configs["llama"] = config_from_state_dict(sd, "llama.transformer.")
    return HiDreamTEModel(**configs, **kwargs)
