"""T5 as diffusion models use it: tokens with weights in, hidden states after the final norm out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.text_encoders.clip_encoder import Chunk, Token, embed_rows, encode_weighted
from comfy.text_encoders.sentence_vocabulary import Vocabulary
from comfy.text_encoders.t5 import T5Config, T5Encoder
from comfy.text_encoders.tokenizer import SDTokenizer

# One chunk, however long the prompt is.
NO_LIMIT = 99999999


class T5Tokenizer(SDTokenizer):
    """One chunk of tokens with an end token, filled up to `min_length`.

    The vocabulary is read when the first prompt comes; see `Vocabulary`. tokenizer_data: `spiece_model`, the vocabulary
    out of a weights file; `folders`, where those files are.
    """

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
        vocabulary: str = "t5",
        min_length: int = 1,
        end_token: int = 1,
        pad_token: int = 0,
        embedding_size: int = 4096,
        embedding_key: str = "t5xxl",
    ):
        data = tokenizer_data or {}
        self.vocabulary = Vocabulary(
            vocabulary, embedded=data.get("spiece_model"), folders=[Path(f) for f in data.get("folders", ())]
        )
        super().__init__(
            embedding_directory,
            embedding_size=embedding_size,
            embedding_key=embedding_key,
            encode=self.vocabulary.encode,
            start_token=None,
            end_token=end_token,
            pad_token=pad_token,
            max_length=NO_LIMIT,
            min_length=min_length,
            pad_to_max_length=False,
            tokenizer_data=data,
        )

    def state_dict(self) -> dict[str, Tensor]:
        embedded = self.vocabulary.embedded
        return {} if embedded is None else {"spiece_model": embedded}


class T5TextEncoder(nn.Module):
    """A T5 encoder and what is done about the tokens behind the end of the prompt.

    use_mask: they are not looked at; zero_masked: their hidden states become 0 as well; return_mask: the mask is
    handed on with the conditioning, as `attention_mask`.
    """

    def __init__(
        self,
        config: T5Config,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
        end_token: int = 1,
        pad_token: int = 0,
        use_mask: bool = False,
        zero_masked: bool = False,
        return_mask: bool = False,
    ):
        super().__init__()
        self.transformer = T5Encoder(config, dtype=dtype, device=device, operations=operations)
        self.special_tokens = {"end": end_token, "pad": pad_token}
        self.use_mask, self.zero_masked, self.return_mask = use_mask, zero_masked, return_mask

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """The choice of a layer is for CLIP only."""

    def reset_clip_options(self) -> None:
        pass

    def encode(self, tokens: Sequence[Sequence[Token]]) -> tuple[Tensor, None]:
        """Hidden states [rows, tokens, width] in float32; there is no pooled vector."""
        embeds, ends = embed_rows(self.transformer, tokens, self.transformer.config.d_model, self.special_tokens)
        mask = None
        if self.use_mask or self.zero_masked:
            mask = prompt_mask(ends, embeds.shape[1])
        hidden, _ = self.transformer(embeds=embeds, attention_mask=mask if self.use_mask else None)
        if self.zero_masked:
            hidden = hidden * mask.unsqueeze(-1).to(hidden.dtype)
        return hidden.float(), None

    def encode_token_weights(self, token_weight_pairs: Sequence[Chunk]) -> tuple:
        """Conditioning [1, tokens, width], None and a dict with the mask [1, tokens] if it is to be handed on."""
        device = comfy.model_management.intermediate_device()
        cond, _ = encode_weighted(self, token_weight_pairs)
        extra = {}
        if self.return_mask:
            end = self.special_tokens["end"]
            masks = []
            for chunk in token_weight_pairs:
                places = [i for i, entry in enumerate(chunk) if isinstance(entry[0], int) and entry[0] == end]
                last = torch.tensor([places[0] if places else len(chunk) - 1])
                masks.append(prompt_mask(last, len(chunk)))
            extra["attention_mask"] = torch.cat(masks, dim=1).to(device)
        return cond.to(device), None, extra


def prompt_mask(ends: Tensor, length: int) -> Tensor:
    """[rows, length] of integers: 1 up to and including the end token of each row."""
    return (torch.arange(length, device=ends.device) <= ends[:, None]).long()
