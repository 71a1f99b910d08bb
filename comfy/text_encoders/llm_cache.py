"""What a language model remembers of the tokens it has read, so that each further one is computed alone.

Source: Shazeer 2019, "Fast Transformer Decoding": keys and values of earlier tokens do not change.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from comfy.text_encoders.llama import LlamaConfig, Stack, rope_table


class Cache:
    """Keys and values of every layer for one text, in memory taken at once: nothing grows or moves while it is written.

    places: of all tokens there will be, [tokens], or [3, tokens] with time, row and column; it fixes the capacity.
    """

    def __init__(self, config: LlamaConfig, places: Tensor, dtype: torch.dtype, device: torch.device):
        self.config = config
        self.length = 0
        head, sections = config.head_dim, config.mrope_sections
        places = places.to(device)
        self._table = rope_table(places, head, config.rope_theta, config.rope_scale, sections)
        self._local_table = self._table
        if config.sliding_window is not None:
            self._local_table = rope_table(places, head, config.local_rope_theta, 1.0, sections)
        shape = (2, 1, config.num_key_value_heads, places.shape[-1], head)
        self._layers = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]

    @staticmethod
    def size(config: LlamaConfig, capacity: int, dtype: torch.dtype) -> int:
        """Bytes for so many tokens."""
        return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * capacity * dtype.itemsize

    def remember(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Note keys and values [1, heads, new tokens, width] of the next tokens; those of all tokens so far. For a
        single token of a local layer only those it may look at."""
        count = k.shape[2]
        start, end = self.length, self.length + count
        keys, values = self._layers[layer]
        keys[:, :, start:end], values[:, :, start:end] = k, v
        first = max(0, end - self.config.sliding_window) if count == 1 and self.config.is_local(layer) else 0
        return keys[:, :, first:end], values[:, :, first:end]

    def advance(self, stack: Stack, x: Tensor) -> Tensor:
        """Have the model read the next tokens' embeddings [1, tokens, width], before any scaling. Returns its output
        for them, after the final norm."""
        config, count = self.config, x.shape[1]
        new = slice(self.length, self.length + count)
        tables = [(cos[new], sin[new]) for cos, sin in (self._table, self._local_table)]
        masks = self._masks(count, x.device)
        if config.gemma:
            x = x * config.hidden_size**0.5
        for index, block in enumerate(stack.layers):
            local = config.is_local(index)
            x = block(x, tables[local], masks[local], functools.partial(self.remember, index))
        self.length += count
        return stack.norm(x)

    def _masks(self, count: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """What each of the next tokens may look at [tokens, all tokens so far], in global and in local layers; None for
        a single one: all that `remember` gives it."""
        if count == 1:
            return None, None
        end = self.length + count
        place = torch.arange(self.length, end, device=device)[:, None]
        other = torch.arange(end, device=device)
        mask = other <= place
        window = self.config.sliding_window
        return mask, mask if window is None else mask & (other > place - window)
