"""SDXL's text side: CLIP ViT-L and open_clip's ViT-bigG, each with the layer before its last, not normed.

Their tokens are joined on the channels (L, then G); pooled is bigG's vector after its projection. The refiner has bigG
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import comfy.ops
from comfy.text_encoders.clip import CLIPTextConfig, config_from_state_dict
from comfy.text_encoders.clip_encoder import Chunk, SDClipModel
from comfy.text_encoders.sd1 import clip_l_tokenizer
from comfy.text_encoders.sd2 import PAD_TOKEN, special_tokens
from comfy.text_encoders.single import IncompatibleKeys, SingleEncoder, load_one_of
from comfy.text_encoders.tokenizer import SDTokenizer

CLIP_L = CLIPTextConfig()
CLIP_G = CLIPTextConfig(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=32,
    num_attention_heads=20,
    hidden_act="gelu",
    projection_dim=1280,
)


def clip_g_tokenizer(
    embedding_directory: str | Sequence[str] | None = None, tokenizer_data: dict[str, Any] | None = None
) -> SDTokenizer:
    """Chunks of 77, filled up with zeros."""
    return SDTokenizer(
        embedding_directory,
        embedding_size=CLIP_G.hidden_size,
        embedding_key="clip_g",
        pad_token=PAD_TOKEN,
        tokenizer_data=tokenizer_data,
    )


class SDXLTokenizer:
    """Prompt -> {"g": chunks, "l": chunks}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        self.clip_l = clip_l_tokenizer(embedding_directory, tokenizer_data)
        self.clip_g = clip_g_tokenizer(embedding_directory, tokenizer_data)

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`."""
        options = tokenizer_options or {}
        return {
            "g": self.clip_g.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs),
            "l": self.clip_l.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs),
        }

    def state_dict(self) -> dict[str, Tensor]:
        return {}


class SDXLClipG(SDClipModel):
    """bigG: the layer before the last, not normed; pooled with projection."""

    def __init__(self, config: CLIPTextConfig = CLIP_G, **kwargs: Any):
        super().__init__(
            config,
            layer="hidden",
            layer_idx=-2,
            layer_norm_hidden_state=False,
            special_tokens=special_tokens(config),
            **kwargs,
        )


class SDXLClipL(SDClipModel):
    """ViT-L the way the families after Stable Diffusion 1 use it: as bigG, pooled without projection."""

    def __init__(self, config: CLIPTextConfig = CLIP_L, **kwargs: Any):
        super().__init__(
            config,
            layer="hidden",
            layer_idx=-2,
            layer_norm_hidden_state=False,
            return_projected_pooled=False,
            **kwargs,
        )


def join_channels(first: Tensor, second: Tensor) -> Tensor:
    """Two encoders' tokens side by side, cut to the shorter of them."""
    length = min(first.shape[1], second.shape[1])
    return torch.cat([first[:, :length], second[:, :length]], dim=-1)


class SDXLClipModel(nn.Module):
    """Both encoders. Weights are named `clip_l.transformer...` and `clip_g.transformer...`."""

    def __init__(
        self,
        clip_l: CLIPTextConfig = CLIP_L,
        clip_g: CLIPTextConfig = CLIP_G,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        factory = {"device": device, "dtype": dtype, "operations": operations}
        self.clip_l = SDXLClipL(clip_l, **factory)
        self.clip_g = SDXLClipG(clip_g, **factory)
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        self.clip_l.set_clip_options(options)
        self.clip_g.set_clip_options(options)

    def reset_clip_options(self) -> None:
        self.clip_l.reset_clip_options()
        self.clip_g.reset_clip_options()

    def load_sd(self, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
        """Take the weights of one encoder out of its own file, see `load_one_of`."""
        return load_one_of(self, sd)

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple[Tensor, Tensor | None]:
        """Conditioning [1, tokens, width of L + width of G] and bigG's pooled vector."""
        g, pooled = self.clip_g.encode_token_weights(token_weight_pairs["g"])
        l, _ = self.clip_l.encode_token_weights(token_weight_pairs["l"])
        return join_channels(l, g), pooled


class SDXLRefinerClipModel(SingleEncoder):
    """bigG alone. Its weights are named `clip_g.transformer...`."""

    def __init__(
        self,
        config: CLIPTextConfig = CLIP_G,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__("g", SDXLClipG(config, device=device, dtype=dtype, operations=operations), dtype=dtype)


def clip_configs(sd: Mapping[str, Tensor], *names: str) -> dict[str, CLIPTextConfig]:
    """Configurations of the CLIP encoders called `names`, read from the shapes of their tensors."""
    activations = {"clip_l": "quick_gelu", "clip_g": "gelu"}
    return {name: config_from_state_dict(sd, f"{name}.transformer.", hidden_act=activations[name]) for name in names}


def build(sd: Mapping[str, Tensor], **kwargs: Any) -> SDXLClipModel:
    """The encoders for weights named as the model names them; they are not loaded yet."""
    return SDXLClipModel(**clip_configs(sd, "clip_l", "clip_g"), **kwargs)


def build_refiner(sd: Mapping[str, Tensor], **kwargs: Any) -> SDXLRefinerClipModel:
    """The encoder for weights named as the model names them; they are not loaded yet."""
    return SDXLRefinerClipModel(clip_configs(sd, "clip_g")["clip_g"], **kwargs)
