"""Stable Diffusion 3's text side: CLIP ViT-L, bigG and T5-XXL, any of which may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.text_encoders import t5
from comfy.text_encoders.clip import CLIPTextConfig
from comfy.text_encoders.clip_encoder import Chunk
from comfy.text_encoders.sdxl import CLIP_G, CLIP_L, SDXLClipG, SDXLClipL, SDXLTokenizer, clip_configs, join_channels
from comfy.text_encoders.single import IncompatibleKeys, load_one_of
from comfy.text_encoders.t5_encoder import T5TextEncoder, T5Tokenizer

CONTEXT_WIDTH = 4096
CHUNK = 77


class SD3Tokenizer(SDXLTokenizer):
    """Prompt -> {"g": chunks, "l": chunks, "t5xxl": one chunk}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        super().__init__(embedding_directory, tokenizer_data)
        self.t5xxl = T5Tokenizer(embedding_directory, tokenizer_data, min_length=CHUNK)
        # Without T5's weights its vocabulary is not looked for.
        self.with_t5 = (tokenizer_data or {}).get("with_t5", True)

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, list[list[tuple]]]:
        out = super().tokenize_with_weights(text, return_word_ids, tokenizer_options, **kwargs)
        options = tokenizer_options or {}
        out["t5xxl"] = []
        if self.with_t5:
            tokens = self.t5xxl.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)
            out["t5xxl"] = tokens
        return out


class SD3ClipModel(nn.Module):
    """The encoders that are there. Weights are named `clip_l.transformer...`, `clip_g...`, `t5xxl...`.

    Tokens of L and G are joined on the channels and filled up with zeros to T5's width; T5's follow behind. A missing
    CLIP's channels and pooled vector are zeros.
    """

    def __init__(
        self,
        clip_l: CLIPTextConfig | None = CLIP_L,
        clip_g: CLIPTextConfig | None = CLIP_G,
        t5xxl: t5.T5Config | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype, "operations": operations}
        self.clip_l = None if clip_l is None else SDXLClipL(clip_l, **factory)
        self.clip_g = None if clip_g is None else SDXLClipG(clip_g, **factory)
        self.t5xxl = None if t5xxl is None else T5TextEncoder(t5xxl, **factory)
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        for encoder in (self.clip_l, self.clip_g):
            if encoder is not None:
                encoder.set_clip_options(options)

    def reset_clip_options(self) -> None:
        for encoder in (self.clip_l, self.clip_g):
            if encoder is not None:
                encoder.reset_clip_options()

    def load_sd(self, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
        """Take the weights of one encoder out of its own file; see `load_one_of`."""
        return load_one_of(self, sd)

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple[Tensor, Tensor]:
        """Conditioning [1, tokens, 4096] and pooled vector [1, width of L + width of G]."""
        device = comfy.model_management.intermediate_device()
        tokens, l_pooled = None, torch.zeros(1, CLIP_L.hidden_size, device=device)
        g_pooled = torch.zeros(1, CLIP_G.projection_dim, device=device)
        if self.clip_l is not None:
            tokens, l_pooled = self.clip_l.encode_token_weights(token_weight_pairs["l"])
        if self.clip_g is not None:
            g, g_pooled = self.clip_g.encode_token_weights(token_weight_pairs["g"])
            tokens = F.pad(g, (CLIP_L.hidden_size, 0)) if tokens is None else join_channels(tokens, g)
        parts = [] if tokens is None else [F.pad(tokens, (0, CONTEXT_WIDTH - tokens.shape[-1]))]
        if self.t5xxl is not None and token_weight_pairs.get("t5xxl"):
            parts.append(self.t5xxl.encode_token_weights(token_weight_pairs["t5xxl"])[0])
        if not parts:
            parts.append(torch.zeros(1, CHUNK, CONTEXT_WIDTH, device=device))
        return torch.cat(parts, dim=1), torch.cat([l_pooled, g_pooled], dim=-1)


def build(sd: Mapping[str, Tensor], **kwargs: Any) -> SD3ClipModel:
    """The encoders for weights named as the model names them; they are not loaded yet."""
    present = [name for name in ("clip_l", "clip_g") if any(k.startswith(f"{name}.") for k in sd)]
    configs: dict[str, Any] = {"clip_l": None, "clip_g": None, **clip_configs(sd, *present)}
    if any(k.startswith("t5xxl.") for k in sd):
        configs["t5xxl"] = t5.config_from_state_dict(sd, "t5xxl.transformer.")
    return SD3ClipModel(**configs, **kwargs)
