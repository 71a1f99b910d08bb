"""Text sides with one encoder: its tokenizer and model under the names that checkpoints and node packs use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from comfy.text_encoders.clip_encoder import Chunk


class SingleTokenizer:
    """Prompt -> {name: chunks of tokens}.

    clip_name: key of the chunks; attribute: under which name the tokenizer itself is found (`clip_l`, `t5xxl`).
    """

    def __init__(self, clip_name: str, tokenizer: Any, attribute: str | None = None):
        self.clip_name = clip_name
        self.clip = attribute or f"clip_{clip_name}"
        setattr(self, self.clip, tokenizer)

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`."""
        options = tokenizer_options or {}
        tokenizer = getattr(self, self.clip)
        chunks = tokenizer.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)
        return {self.clip_name: chunks}

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint has to carry for this tokenizer."""
        return getattr(self, self.clip).state_dict()


class SingleEncoder(nn.Module):
    """The model of one encoder; its weights are named `<attribute>.transformer...`."""

    def __init__(self, clip_name: str, encoder: nn.Module, attribute: str | None = None, dtype: Any = None):
        super().__init__()
        self.clip_name = clip_name
        self.clip = attribute or f"clip_{clip_name}"
        setattr(self, self.clip, encoder)
        self.dtypes = {dtype}

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        getattr(self, self.clip).set_clip_options(options)

    def reset_clip_options(self) -> None:
        getattr(self, self.clip).reset_clip_options()

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        """Conditioning [1, tokens, width], pooled vector (None for encoders without) and, from encoders that give more,
        a dict of it."""
        return getattr(self, self.clip).encode_token_weights(token_weight_pairs[self.clip_name])
