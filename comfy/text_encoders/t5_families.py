"""Text sides that are one T5 encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from comfy.text_encoders.single import SingleEncoder, SingleTokenizer
from comfy.text_encoders.t5 import T5Config, config_from_state_dict
from comfy.text_encoders.t5_encoder import T5TextEncoder, T5Tokenizer


class T5XXLTokenizer(SingleTokenizer):
    """Prompt -> {"t5xxl": one chunk of T5 tokens}, filled up to `min_length`."""

    min_length = 1

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        tokenizer = T5Tokenizer(embedding_directory, tokenizer_data, min_length=self.min_length)
        super().__init__("t5xxl", tokenizer, "t5xxl")


class PixArtTokenizer(T5XXLTokenizer):
    """Not filled up: PixArt and Chroma look at the words only."""


class MochiT5Tokenizer(T5XXLTokenizer):
    min_length = 256


class LTXVT5Tokenizer(T5XXLTokenizer):
    min_length = 128


class AuraT5Tokenizer(SingleTokenizer):
    """Prompt -> {"pile_t5xl": one chunk of Pile-T5 tokens, 256 or more}."""

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        tokenizer = T5Tokenizer(
            embedding_directory,
            tokenizer_data,
            vocabulary="pile_t5",
            min_length=256,
            end_token=2,
            pad_token=1,
            embedding_size=2048,
            embedding_key="pile_t5xl",
        )
        super().__init__("pile_t5xl", tokenizer, "pile_t5xl")


class WanT5Tokenizer(SingleTokenizer):
    """Prompt -> {"umt5xxl": one chunk of UMT5 tokens, 512 or more}; any language."""

    min_length = 512

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
        vocabulary: str = "umt5",
    ):
        tokenizer = T5Tokenizer(
            embedding_directory,
            tokenizer_data,
            vocabulary=vocabulary,
            min_length=self.min_length,
            embedding_key="umt5xxl",
        )
        super().__init__("umt5xxl", tokenizer, "umt5xxl")


class T5XXLModel(SingleEncoder):
    """T5-XXL. Its weights are named `t5xxl.transformer...`."""

    encoder_options: Mapping[str, Any] = {}
    name = "t5xxl"

    def __init__(self, config: T5Config | None = None, **kwargs: Any):
        encoder = T5TextEncoder(config or T5Config(), **self.encoder_options, **kwargs)
        super().__init__(self.name, encoder, self.name, dtype=kwargs.get("dtype"))

    @classmethod
    def build(cls, sd: Mapping[str, Tensor], **kwargs: Any) -> T5XXLModel:
        """The encoder for weights named as the model names them; they are not loaded yet."""
        return cls(config_from_state_dict(sd, f"{cls.name}.transformer."), **kwargs)


class PixArtT5XXL(T5XXLModel):
    """As PixArt and Chroma use it."""


class MochiT5XXL(T5XXLModel):
    """As the video models use it: filled-up places are masked, and the mask handed on."""

    encoder_options = {"use_mask": True, "return_mask": True}


class AuraT5Model(T5XXLModel):
    """Pile-T5 XL as AuraFlow uses it: filled-up places are masked and become 0. Weights: `pile_t5xl.transformer...`."""

    encoder_options = {"end_token": 2, "pad_token": 1, "use_mask": True, "zero_masked": True}
    name = "pile_t5xl"


class WanT5Model(T5XXLModel):
    """UMT5-XXL as Wan uses it: filled-up places are masked and become 0. Weights: `umt5xxl.transformer...`."""

    encoder_options = {"use_mask": True, "zero_masked": True}
    name = "umt5xxl"
