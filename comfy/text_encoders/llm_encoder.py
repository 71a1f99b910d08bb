"""A language model as text encoder: a prompt inside a template, hidden states of chosen layers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.text_encoders.clip_encoder import Chunk, Token, embed_rows, encode_weighted
from comfy.text_encoders.llama import LlamaConfig, LlamaEncoder
from comfy.text_encoders.sentence_vocabulary import Vocabulary
from comfy.text_encoders.t5_encoder import NO_LIMIT
from comfy.text_encoders.tokenizer import SDTokenizer

ALL = "all"
LAST = "last"
# A prompt that begins so brings its own template.
TEMPLATE_STARTS = ("<|im_start|>", "<|start_header_id|>")


class PicturesNotSeen(ValueError):
    """Pictures were given to a text encoder that only reads."""


class LLMTokenizer(SDTokenizer):
    """One chunk of tokens, filled up to `min_length`, on the left with `pad_left`.

    vocabulary: a name of `comfy.text_encoders.sentence_vocabulary.SOURCES`. tokenizer_data: `spiece_model`, the
    vocabulary out of a weights file; `folders`, where those files are.
    """

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
        vocabulary: str = "qwen2.5",
        embedding_size: int = 4096,
        embedding_key: str = "llama",
        start_token: int | None = None,
        pad_token: int = 0,
        min_length: int = 1,
        pad_left: bool = False,
    ):
        data = tokenizer_data or {}
        self.vocabulary = Vocabulary(
            vocabulary, embedded=data.get("spiece_model"), folders=[Path(f) for f in data.get("folders", ())]
        )
        self.pad_left = pad_left
        super().__init__(
            embedding_directory,
            embedding_size=embedding_size,
            embedding_key=embedding_key,
            encode=self.vocabulary.encode,
            start_token=start_token,
            end_token=None,
            pad_token=pad_token,
            max_length=NO_LIMIT,
            min_length=min_length,
            pad_to_max_length=False,
            tokenizer_data=data,
        )

    def _pad(self, chunk: list, length: int) -> None:
        filling = [(self.pad_token, 1.0, 0)] * (length - len(chunk))
        chunk[:] = [*filling, *chunk] if self.pad_left else [*chunk, *filling]

    def state_dict(self) -> dict[str, Tensor]:
        embedded = self.vocabulary.embedded
        return {} if embedded is None else {"spiece_model": embedded}


class TemplateTokenizer:
    """Prompt -> {name: one chunk}, the prompt put into `template` (which has one {}); brackets in it are text like any
    other. A keyword `llama_template` gives another template, and a prompt that begins with a template's mark is taken
    as it is."""

    name = "llama"
    template = "{}"
    options: Mapping[str, Any] = {}
    # For a prompt with pictures, and the token in whose place one goes; None: pictures cannot be shown.
    picture_template: str | None = None
    picture_token: int | None = None

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        tokenizer = LLMTokenizer(embedding_directory, tokenizer_data, embedding_key=self.name, **self.options)
        setattr(self, self.name, tokenizer)

    def tokenize_with_weights(
        self,
        text: str,
        return_word_ids: bool = False,
        tokenizer_options: dict[str, Any] | None = None,
        llama_template: str | None = None,
        images: Sequence[Tensor] = (),
        **kwargs: Any,
    ) -> dict[str, list[list[tuple]]]:
        """See `SDTokenizer.tokenize_with_weights`. images: [1, height, width, 3] in 0..1; each becomes the token of one
        place for a picture in the text, {"type": "image", "data": image}. Raises PicturesNotSeen."""
        if len(images) and self.picture_token is None:
            raise PicturesNotSeen(f"the text encoder {self.name} sees no pictures, and {len(images)} were given")
        options = tokenizer_options or {}
        if not text.startswith(TEMPLATE_STARTS):
            template = llama_template or (self.picture_template if len(images) else None) or self.template
            # Not format(): braces in a prompt are text.
            text = template.replace("{}", text, 1)
        kwargs["disable_weights"] = True
        tokenizer = getattr(self, self.name)
        chunks = tokenizer.tokenize_with_weights(text, return_word_ids, tokenizer_options=options, **kwargs)
        return {self.name: [self._with_pictures(chunk, list(images)) for chunk in chunks]}

    def _with_pictures(self, chunk: list[tuple], images: list[Tensor]) -> list[tuple]:
        out = []
        for entry in chunk:
            if images and isinstance(entry[0], int) and entry[0] == self.picture_token:
                entry = ({"type": "image", "data": images.pop(0)}, *entry[1:])
            out.append(entry)
        return out

    def state_dict(self) -> dict[str, Tensor]:
        return getattr(self, self.name).state_dict()


class LLMTextEncoder(nn.Module):
    """A language model and which of its layers are used.

    layer: LAST (after the final norm), a number (that layer's output, negative ones from the end, no norm), several
    numbers (what goes into these layers), or ALL (what comes out of every layer, after the final norm of the last one).
    special_tokens: ids of `start` (if there is one) and `pad`; tokens that only fill up are not looked at.
    """

    def __init__(
        self,
        config: LlamaConfig,
        layer: str | int | tuple[int, ...] = LAST,
        special_tokens: Mapping[str, int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        self.transformer = LlamaEncoder(config, dtype=dtype, device=device, operations=operations)
        self.layer = layer
        self.special_tokens = dict(special_tokens or {"pad": 0})

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """The choice of a layer is the family's."""

    def reset_clip_options(self) -> None:
        pass

    def encode(self, tokens: Sequence[Sequence[Token]]) -> tuple[Tensor, None]:
        """Hidden states in float32: [rows, tokens, width], or [rows, layers, tokens, width] for several layers."""
        embeds, _ = embed_rows(self.transformer, tokens, self.transformer.config.hidden_size, self.special_tokens)
        mask = torch.tensor([self.mask_of(row) for row in tokens], device=embeds.device)
        several = self.layer == ALL or isinstance(self.layer, tuple)
        out = self.transformer(
            embeds=embeds,
            attention_mask=None if mask.all() else mask,
            layer=self.layer if isinstance(self.layer, int) else None,
            keep_all=several,
        )
        if self.layer == ALL:
            return out.all[:, 1:].float(), None
        if several:
            return out.all[:, list(self.layer)].float(), None
        return (out.last if self.layer == LAST else out.hidden).float(), None

    def embed_prompt(self, row: Sequence[Any]) -> tuple[Tensor, Tensor, int]:
        """A prompt as the model reads it: embeddings [1, tokens, width] in float32, the tokens' places [tokens] (with
        pictures [3, tokens]), and the place of the token that comes next."""
        embeds, _ = embed_rows(self.transformer, [row], self.transformer.config.hidden_size, self.special_tokens)
        return embeds, torch.arange(len(row), device=embeds.device), len(row)

    def length_of(self, row: Sequence[Any]) -> int:
        """How many tokens the model reads."""
        return len(row)

    @property
    def sees(self) -> bool:
        """Whether pictures may be among the tokens."""
        return False

    def mask_of(self, row: Sequence[Token]) -> list[int]:
        """1 for tokens of the prompt; 0 for those that fill up at either end."""
        pad = self.special_tokens["pad"]
        is_pad = [isinstance(token, int) and token == pad for token in row]
        start = next((i for i, filling in enumerate(is_pad) if not filling), len(row))
        rest = is_pad[start:]
        end = start + (rest.index(True) if True in rest else len(rest))
        return [int(start <= i < end) for i in range(len(row))]

    def encode_token_weights(self, token_weight_pairs: Sequence[Chunk]) -> tuple[Tensor, None, dict[str, Tensor]]:
        """Conditioning [1, tokens, width] ([1, layers, tokens, width] for several layers), None, and the mask [1,
        tokens] where some tokens only fill up."""
        device = comfy.model_management.intermediate_device()
        if self.layer == ALL or isinstance(self.layer, tuple):
            cond, _ = self.encode([[entry[0] for entry in chunk] for chunk in token_weight_pairs[:1]])
        else:
            cond, _ = encode_weighted(self, token_weight_pairs)
        mask = torch.tensor([[n for chunk in token_weight_pairs for n in self.mask_of([t[0] for t in chunk])]])
        extra = {} if mask.all() else {"attention_mask": mask.to(device)}
        return cond.to(device), None, extra
