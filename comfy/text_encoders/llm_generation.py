"""A language model writes: the head that makes words of hidden states, and the loop from a prompt to an answer.

The text encoders of several families are whole language models (see `comfy.text_encoders.llama`); what encoding does
not need of them is here. Gemma 2 caps the logits of its words as published. Left out, as in encoding, are the cap on
its attention, its window of 4096 tokens, and the frequencies that Llama 3.1 stretches for long texts.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.interrupt import throw_exception_if_processing_interrupted
from comfy.model_base import load_assigned
from comfy.quantized_files import with_shapes_of_values
from comfy.text_encoders.chat_templates import CHATS, Chat
from comfy.text_encoders.llm_cache import Cache
from comfy.text_encoders.llm_encoder import LLMTextEncoder, LLMTokenizer, PicturesNotSeen
from comfy.text_encoders.llm_families import QWEN_PICTURE
from comfy.text_encoders.qwen_vision import MERGE
from comfy.text_encoders.token_choice import Chooser, Sampling

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

log = logging.getLogger(__name__)

# Where a file has the output head, below the language model's own name.
HEAD_NAMES = (".transformer.lm_head.", ".transformer.model.lm_head.")
# Tokens of a prompt that are read at a time: bounds the memory that its attention takes.
READ_AT_ONCE = 2048
# Rows of the head that are brought to another dtype at a time: in float32 a whole one may have 2 GB.
HEAD_ROWS = 16384


class NoLanguageModel(ValueError):
    """A text encoder was asked to write, but can only encode."""


class EmptyPrompt(ValueError):
    """There is not a single token to go on from."""


class SoundNotHeard(ValueError):
    """Sound was given to a language model that cannot hear."""


class OutputHead(nn.Module):
    """The output head of a language model whose file has one beside the table of embeddings. It is no part of the
    encoder's module, so that encoding does not load it. prefix: of its tensors' names among the text side's."""

    def __init__(
        self, vocabulary: int, width: int, prefix: str = "", operations: Any = comfy.ops.manual_cast, **kwargs
    ):
        super().__init__()
        self.prefix = prefix
        self.lm_head = operations.Linear(width, vocabulary, bias=False, **kwargs)

    @classmethod
    def build(cls, sd: Mapping[str, Tensor], **kwargs: Any) -> OutputHead | None:
        """With tensors that `take_head` found as its weights; None of nothing. Raises WeightsMismatch."""
        if not sd:
            return None
        path = next(iter(sd)).rpartition("lm_head.")[0]
        own = {key.removeprefix(path): value for key, value in sd.items()}
        weight = with_shapes_of_values(own).get("lm_head.weight")
        shape = (1, 1) if weight is None else weight.shape
        head = cls(*shape, prefix=path, device="meta", **kwargs)
        load_assigned(head, own, "output head")
        return head.eval()

    def tensors(self, sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state dict of this module under the names of the text side."""
        return {self.prefix + key: value for key, value in sd.items()}


def take_head(sd: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take the output head's tensors out of a text side's."""
    return {key: sd.pop(key) for key in list(sd) if any(name in key for name in HEAD_NAMES)}


def logits_of(layer: nn.Module, x: Tensor, softcap: float | None = None) -> Tensor:
    """Logits [..., vocabulary] in float32 of hidden states; `layer` has the weight [vocabulary, width]: a head, or the
    table of embeddings."""
    logits = torch.cat([F.linear(x, part) for part in _rows_of(layer, x)], dim=-1).float()
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def _rows_of(layer: nn.Module, x: Tensor) -> Iterator[Tensor]:
    """The layer's weight in dtype and on the device of `x`, some rows at a time where they have to be computed."""
    weight = layer.weight if layer.streamer is None else layer.streamer.fetch(layer)[0]
    weight = weight.to(x.device)
    quantization = layer.quantization
    if quantization is not None and not layer.weight_function:
        for index in torch.arange(weight.shape[0], device=x.device).split(HEAD_ROWS):
            yield quantization.rows(weight, layer._buffers, index, x.dtype)
        return
    if quantization is not None:
        weight = quantization.values(weight, layer._buffers, x.dtype)
    for function in layer.weight_function:
        weight = function(weight)
    for part in [weight] if weight.dtype == x.dtype else weight.split(HEAD_ROWS):
        yield part.to(x.dtype)


@torch.inference_mode()
def write(
    encoder: LLMTextEncoder,
    row: Sequence[Any],
    head: nn.Module,
    max_length: int,
    sampling: Sampling | None,
    ends: frozenset[int],
    device: torch.device,
    dtype: torch.dtype,
    on_token: Callable[[int], None] = lambda count: None,
) -> list[int]:
    """The ids of what the model writes after the prompt `row`, without the token that ends it, at most `max_length`.

    sampling None: always the likeliest token. dtype: of computing. on_token: told after each token how many there are.
    Each token is read by the host once, as it may be one that ends the answer; apart from that the host never waits.
    Raises InterruptProcessingException between tokens.
    """
    transformer, config = encoder.transformer, encoder.transformer.config
    embeds, places, following = encoder.embed_prompt(row)
    further = torch.arange(following, following + max_length, device=places.device)
    cache = Cache(config, torch.cat([places, further.expand(*places.shape[:-1], -1)], dim=-1), dtype, device)
    for part in embeds.to(device=device, dtype=dtype).split(READ_AT_ONCE, dim=1):
        throw_exception_if_processing_interrupted()
        hidden = cache.advance(transformer.model, part)[:, -1:]
    words = [token for token in row if isinstance(token, int)]
    chooser = Chooser(config.vocab_size, words, sampling, max_length, device)
    written: list[int] = []
    while True:
        throw_exception_if_processing_interrupted()
        token = chooser.choose(logits_of(head, hidden, config.final_softcap)[0, -1])
        number = int(token)
        if number in ends:
            return written
        written.append(number)
        on_token(len(written))
        if len(written) == max_length:
            return written
        hidden = cache.advance(transformer.model, transformer.embed(token.unsqueeze(0), dtype).to(device))


@dataclasses.dataclass
class LanguageModel:
    """The language model of a text side: name of its encoder, encoder, tokenizer, how to speak to it, and its output
    head behind a patcher (None: the embeddings serve)."""

    name: str
    encoder: LLMTextEncoder
    tokenizer: LLMTokenizer
    chat: Chat
    head: ModelPatcher | None

    @classmethod
    def of(cls, model: nn.Module, tokenizer: Any, head: ModelPatcher | None) -> LanguageModel:
        """Raises NoLanguageModel for a text side that has none, naming what it has."""
        encoders = dict(model.named_children())
        for name, encoder in encoders.items():
            words = getattr(tokenizer, name, None)
            if name in CHATS and isinstance(encoder, LLMTextEncoder) and isinstance(words, LLMTokenizer):
                return cls(name, encoder, words, CHATS[name], head)
        known = ", ".join(chat.label for chat in CHATS.values())
        raise NoLanguageModel(
            f"this text encoder ({' + '.join(encoders) or type(model).__name__}) encodes text but cannot write any. "
            f"Load a language model with Load CLIP: {known}"
        )

    def must_see(self, source: str) -> None:
        """Raises PicturesNotSeen if it cannot; source: which input they come from."""
        if self.encoder.sees:
            return
        if self.name == "qwen25_7b":
            cause = "this file lacks the part that sees; use one with the tensors visual.*"
        else:
            cause = f"it only reads. Leave {source} unconnected, or load Qwen 2.5 VL 7B"
        raise PicturesNotSeen(f"{self.chat.label} cannot see what is connected to {source}: {cause}")

    def must_hear(self, source: str) -> None:
        """Raises SoundNotHeard: none of the models known here does."""
        raise SoundNotHeard(
            f"{self.chat.label} cannot hear what is connected to {source}: no language model known here takes sound. "
            f"Leave {source} unconnected"
        )

    def tokenize(
        self, text: str, images: Sequence[Tensor] = (), thinking: bool = False, template: bool = True
    ) -> dict[str, list[list[tuple]]]:
        """A prompt as the model was trained to be spoken to, or as it is typed: see `Chat.dress`. Brackets and names of
        embeddings are text like any other. images: [1, height, width, 3] in 0..1. Raises EmptyPrompt."""
        ids = self.tokenizer.encode(self.chat.dress(text, len(images), thinking, template))
        start = self.tokenizer.start_token
        if start is not None and ids[:1] != [start]:
            ids = [start, *ids]
        if not ids:
            raise EmptyPrompt(f"the prompt is empty, and {self.chat.label} has nothing to go on from")
        waiting = list(images)
        place = QWEN_PICTURE if self.encoder.sees else None
        row = [{"type": "image", "data": waiting.pop(0)} if waiting and token == place else token for token in ids]
        return {self.name: [[(token, 1.0) for token in row]]}

    def row_of(self, tokens: Mapping[str, Any]) -> list[Any]:
        """The prompt among a text side's tokens, without what fills up. Raises EmptyPrompt."""
        row = [entry[0] for chunk in tokens[self.name] for entry in chunk]
        pad = self.tokenizer.pad_token
        kept = [i for i, token in enumerate(row) if not (isinstance(token, int) and token == pad)]
        # Llama fills up with the token that also ends a turn: within the prompt it stays.
        row = row[kept[0] : kept[-1] + 1] if kept else []
        if not row:
            raise EmptyPrompt(f"the prompt is empty, and {self.chat.label} has nothing to go on from")
        return row

    def dtype(self, device: torch.device) -> torch.dtype:
        """What to compute in: bfloat16 where the device is made for it and the weights are no finer; else float32, as
        these models overflow in float16."""
        layer = self.encoder.transformer.model.layers[0].mlp.up_proj
        coarse = layer.weight.dtype.itemsize <= 2
        return torch.bfloat16 if coarse and comfy.model_management.should_use_bf16(device) else torch.float32

    def working_bytes(self, row: Sequence[Any], max_length: int, dtype: torch.dtype) -> int:
        """About how much memory writing takes besides the weights."""
        config, length = self.encoder.transformer.config, self.encoder.length_of(row)
        capacity, chunk = length + max_length, min(length, READ_AT_ONCE)
        memory = Cache.size(config, capacity, dtype)
        reading = chunk * (4 * config.intermediate_size + 8 * config.hidden_size) * dtype.itemsize
        looking = 2 * config.num_attention_heads * config.head_dim * length * dtype.itemsize + chunk * length
        choosing = 16 * config.vocab_size * torch.float32.itemsize + HEAD_ROWS * config.hidden_size * dtype.itemsize
        seeing = 0
        if len(row) < length:
            eyes = self.encoder.transformer.visual.config
            seeing = (length - len(row)) * MERGE**2 * (3 * eyes.mlp_width + 8 * eyes.width) * torch.float32.itemsize
        return memory + max(reading + looking, choosing, seeing)

    def write(
        self,
        tokens: Mapping[str, Any],
        max_length: int,
        sampling: Sampling | None,
        patcher: ModelPatcher,
        on_token: Callable[[int], None],
    ) -> list[int]:
        """Ids of what the model writes after a prompt; see the function `write`. patcher: of the text side, loaded here
        together with the head."""
        row = self.row_of(tokens)
        device = torch.device(patcher.load_device)
        dtype = self.dtype(device)
        if self.head is None and self.chat.own_head:
            log.warning(
                "%s was trained with an output head, and its file has none (lm_head.weight): the table of embeddings "
                "takes its place, and what it writes may make no sense",
                self.chat.label,
            )
        patchers = [patcher] if self.head is None else [patcher, self.head]
        working = self.working_bytes(row, max_length, dtype)
        comfy.model_management.load_models_gpu(patchers, memory_required=working)
        head = self.encoder.transformer.model.embed_tokens if self.head is None else self.head.model.lm_head
        return write(self.encoder, row, head, max_length, sampling, self.chat.ends, device, dtype, on_token)

    def decode(self, ids: Sequence[int], thoughts: bool = True) -> str:
        """The text of what was written; with `thoughts` False only the answer: see `Chat.answer`. A last character that
        is not complete is left out."""
        text = self.tokenizer.vocabulary.decode(ids).rstrip("\N{REPLACEMENT CHARACTER}")
        return text if thoughts else self.chat.answer(text)
