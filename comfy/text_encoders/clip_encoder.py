"""From chunks of weighted tokens to conditioning, with one CLIP text transformer.

Rules (goldens, section 5): each chunk is encoded without weights; if any weight differs from 1, an empty
chunk is encoded with them, and each token moves along the line from the empty chunk's token to its own:
z = (z - z_empty) * weight + z_empty. Chunks are joined along the tokens; the pooled vector is the first
chunk's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.ops
from comfy.text_encoders.clip import CLIPTextConfig, CLIPTextModel

Token = int | Tensor
Chunk = Sequence[tuple]  # (token, weight) or (token, weight, word id)

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """What `encode_weighted` needs: rows of tokens -> hidden states [rows, tokens, width], pooled [rows,
    width]."""

    special_tokens: dict[str, int]

    def encode(self, tokens: Sequence[Sequence[Token]]) -> tuple[Tensor, Tensor | None]: ...


def gen_empty_tokens(special_tokens: Mapping[str, int], length: int) -> list[int]:
    """The tokens of an empty prompt: start and end where the encoder has them, then padding."""
    tokens = [special_tokens[name] for name in ("start", "end") if special_tokens.get(name) is not None]
    return tokens + [special_tokens["pad"]] * (length - len(tokens))


def encode_weighted(encoder: Encoder, chunks: Sequence[Chunk]) -> tuple[Tensor, Tensor | None]:
    """Conditioning [1, tokens of all chunks, width] and pooled vector [1, width] (None if the encoder has
    none)."""
    rows = [[entry[0] for entry in chunk] for chunk in chunks]
    weights = [[float(entry[1]) for entry in chunk] for chunk in chunks]
    weighted = any(w != 1.0 for row in weights for w in row)
    if weighted or not rows:
        rows.append(gen_empty_tokens(encoder.special_tokens, max(map(len, rows), default=0)))
    hidden, pooled = encoder.encode(rows)
    pooled = None if pooled is None else pooled[:1]
    if not chunks:
        return hidden, pooled
    if weighted:
        empty, hidden = hidden[-1:], hidden[:-1]
        factor = torch.tensor(weights, device=hidden.device, dtype=hidden.dtype).unsqueeze(-1)
        hidden = torch.where(factor == 1.0, hidden, (hidden - empty) * factor + empty)
    return hidden.flatten(0, 1).unsqueeze(0), pooled


class SDClipModel(nn.Module):
    """A CLIP text transformer, which of its layers is used, and how.

    layer: "last" (after the final norm), "hidden" (block `layer_idx`, final norm if
    `layer_norm_hidden_state`). return_projected_pooled: pooled vector times the text projection, or without
    it. special_tokens: ids of `start`, `end`, `pad`.
    """

    LAYERS = ("last", "hidden")

    def __init__(
        self,
        config: CLIPTextConfig,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        layer: str = "last",
        layer_idx: int | None = None,
        layer_norm_hidden_state: bool = True,
        return_projected_pooled: bool = True,
        special_tokens: Mapping[str, int] | None = None,
        operations: type[comfy.ops.disable_weight_init] = comfy.ops.manual_cast,
    ):
        super().__init__()
        if layer not in self.LAYERS:
            raise ValueError(f"layer {layer!r}: one of {', '.join(self.LAYERS)} expected")
        self.transformer = CLIPTextModel(config, dtype=dtype, device=device, operations=operations)
        self.num_layers = self.transformer.num_layers
        end = config.eos_token_id
        self.special_tokens = dict(special_tokens or {"start": end - 1, "end": end, "pad": end})
        self.layer_norm_hidden_state = layer_norm_hidden_state
        self._defaults = (layer, layer_idx, return_projected_pooled)
        self.reset_clip_options()

    def reset_clip_options(self) -> None:
        """Back to what the model family asks for."""
        self.layer, self.layer_idx, self.return_projected_pooled = self._defaults

    def set_clip_options(self, options: Mapping[str, Any]) -> None:
        """`layer`: use this block's output (-1 = last; beyond the first block = last). `projected_pooled`:
        bool."""
        layer_idx = options.get("layer")
        self.return_projected_pooled = options.get("projected_pooled", self.return_projected_pooled)
        if layer_idx is None:
            return
        if abs(layer_idx) > self.num_layers:
            self.layer, self.layer_idx = "last", None
        else:
            self.layer, self.layer_idx = "hidden", layer_idx

    def forward(self, tokens: Sequence[Sequence[Token]]) -> tuple[Tensor, Tensor]:
        """Hidden states [rows, length, width] and pooled vectors of equally long rows of tokens, in
        float32."""
        embeds, end_index = self._embed(tokens)
        hidden_layer = self.layer_idx if self.layer == "hidden" else None
        out = self.transformer(
            embeds=embeds,
            end_index=end_index,
            layer=hidden_layer,
            normalize_hidden=self.layer_norm_hidden_state,
        )
        hidden = out.last if hidden_layer is None else out.hidden
        return hidden.float(), (out.projected if self.return_projected_pooled else out.pooled).float()

    def encode(self, tokens: Sequence[Sequence[Token]]) -> tuple[Tensor, Tensor]:
        return self(tokens)

    def encode_token_weights(self, token_weight_pairs: Sequence[Chunk]) -> tuple[Tensor, Tensor | None]:
        """Conditioning and pooled vector, on the device where intermediate results live."""
        device = comfy.model_management.intermediate_device()
        cond, pooled = encode_weighted(self, token_weight_pairs)
        return cond.to(device), None if pooled is None else pooled.to(device)

    def _embed(self, rows: Sequence[Sequence[Token]]) -> tuple[Tensor, Tensor]:
        return embed_rows(self.transformer, rows, self.transformer.config.hidden_size, self.special_tokens)


def embed_rows(
    transformer: nn.Module, rows: Sequence[Sequence[Token]], width: int, special_tokens: Mapping[str, int]
) -> tuple[Tensor, Tensor]:
    """Embeddings [rows, length, width] of equally long rows, and the place of the first end token in each (of the last
    token where there is none).

    Vectors take the place of a token; one of the wrong width is left out, and the row filled up behind.
    """
    device = transformer.get_input_embeddings().weight.device
    fill, end = special_tokens["pad"], special_tokens.get("end")
    ids, ends, vectors = [], [], []
    for number, row in enumerate(rows):
        kept = [t for t in row if isinstance(t, int) or t.shape[-1] == width]
        if len(kept) < len(row):
            log.warning("a textual inversion of another width than %d was left out of the prompt", width)
        vectors += [(number, i, t) for i, t in enumerate(kept) if not isinstance(t, int)]
        kept += [fill] * (len(row) - len(kept))
        row_ids = [t if isinstance(t, int) else fill for t in kept]
        only_ids = [t if isinstance(t, int) else None for t in kept]
        ids.append(row_ids)
        ends.append(only_ids.index(end) if end in only_ids else len(kept) - 1)
    embeds = transformer.embed(torch.tensor(ids, device=device))
    for number, i, vector in vectors:
        embeds[number, i] = vector.to(device=device, dtype=embeds.dtype)
    return embeds, torch.tensor(ends, device=device)
