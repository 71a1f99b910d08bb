"""Text sides with one encoder: its tokenizer and model under the names that checkpoints and node packs use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from comfy.text_encoders.clip_encoder import Chunk


class IncompatibleKeys(NamedTuple):
    """What a file and a model do not share: keys of the model, and keys of the file."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_encoder(encoder: nn.Module, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
    """Make tensors, named as an encoder's own file names them, the weights of its transformer."""
    encoder.requires_grad_(False)
    return IncompatibleKeys(*encoder.transformer.load_state_dict(dict(sd), strict=False, assign=True))


def load_one_of(model: nn.Module, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
    """`load_encoder` for the encoder of several that a file is of, which its tensors' names tell: `t5xxl`, or the CLIP
    with many layers `clip_g`, or `clip_l`. Raises ValueError if the model has no such encoder."""
    if any(key.startswith("encoder.block.") for key in sd):
        name = "t5xxl"
    else:
        name = "clip_g" if _DEEP_CLIP in sd else "clip_l"
    encoder = getattr(model, name, None)
    if encoder is None:
        raise ValueError(f"the file is one of {name}, which this {type(model).__name__} does not have")
    return load_encoder(encoder, sd)


_DEEP_CLIP = "text_model.encoder.layers.30.mlp.fc1.weight"  # bigG has 32 layers, ViT-L 12


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

    def load_sd(self, sd: Mapping[str, Tensor]) -> IncompatibleKeys:
        """Take the weights out of the encoder's own file (`text_model...`); what the file lacks stays as it is.

        Returns torch's (missing, unexpected) keys; raises RuntimeError for other shapes.
        """
        return load_encoder(getattr(self, self.clip), sd)

    def encode_token_weights(self, token_weight_pairs: Mapping[str, Sequence[Chunk]]) -> tuple:
        """Conditioning [1, tokens, width], pooled vector (None for encoders without) and, from encoders that give more,
        a dict of it."""
        return getattr(self, self.clip).encode_token_weights(token_weight_pairs[self.clip_name])
