"""The encoder of T5 (1.0 and 1.1) and UMT5 in the layout of the `transformers` library.

Sources: Raffel et al. 2020 (T5: relative position biases, no scaling of the attention scores), Shazeer 2020
(the GELU-gated MLP of 1.1), Chung et al. 2023 (UMT5: position biases in every layer).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.dit import count_blocks

NORM_EPS = 1e-6
MAX_DISTANCE = 128


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Shape of the encoder. is_gated_act: gated GELU (1.1, UMT5) instead of ReLU (1.0). shared_bias: one
    table of position biases, in the first layer, serves all."""

    vocab_size: int = 32128
    d_model: int = 4096
    d_kv: int = 64
    d_ff: int = 10240
    num_layers: int = 24
    num_heads: int = 64
    num_buckets: int = 32
    is_gated_act: bool = True
    shared_bias: bool = True


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> T5Config:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win.

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    block = "encoder.block.{}.layer.0.SelfAttention."
    vocab_size, d_model = shape("shared.weight")
    buckets, heads = shape(block.format(0) + "relative_attention_bias.weight")
    gated = f"{prefix}encoder.block.0.layer.1.DenseReluDense.wi_0.weight" in sd
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": shape(block.format(0) + "q.weight")[0] // heads,
        "d_ff": shape("encoder.block.0.layer.1.DenseReluDense.wo.weight")[1],
        "num_layers": count_blocks(sd, prefix + block + "q.weight"),
        "num_heads": heads,
        "num_buckets": buckets,
        "is_gated_act": gated,
        "shared_bias": prefix + block.format(1) + "relative_attention_bias.weight" not in sd,
    }
    values.update(overrides)
    return T5Config(**values)


def position_buckets(length: int, num_buckets: int, device: torch.device | None = None) -> Tensor:
    """Bucket [query, key] of each relative position: half of them for keys behind the query, half for keys
    before it; in each half one per position up to half its size, then logarithmically wider ones up to
    MAX_DISTANCE."""
    places = torch.arange(length, device=device)
    offset = places[None, :] - places[:, None]
    half = num_buckets // 2
    distance = offset.abs()
    exact = half // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    far = (exact + far.long()).clamp(max=half - 1)
    return (offset > 0) * half + torch.where(distance < exact, distance, far)


class Attention(nn.Module):
    def __init__(self, config: T5Config, has_bias: bool, operations, **factory):
        super().__init__()
        inner = config.num_heads * config.d_kv
        self.heads = config.num_heads
        self.num_buckets = config.num_buckets
        self.q = operations.Linear(config.d_model, inner, bias=False, **factory)
        self.k = operations.Linear(config.d_model, inner, bias=False, **factory)
        self.v = operations.Linear(config.d_model, inner, bias=False, **factory)
        self.o = operations.Linear(inner, config.d_model, bias=False, **factory)
        self.relative_attention_bias = None
        if has_bias:
            self.relative_attention_bias = operations.Embedding(config.num_buckets, config.num_heads, **factory)

    def position_bias(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """[1, heads, query, key]."""
        buckets = position_buckets(length, self.num_buckets, device)
        return self.relative_attention_bias(buckets, out_dtype=dtype).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.o(out.transpose(1, 2).flatten(2))


class AttentionLayer(nn.Module):
    def __init__(self, config: T5Config, has_bias: bool, operations, **factory):
        super().__init__()
        self.SelfAttention = Attention(config, has_bias, operations, **factory)
        self.layer_norm = operations.RMSNorm(config.d_model, eps=NORM_EPS, **factory)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return x + self.SelfAttention(self.layer_norm(x), bias)


class Dense(nn.Module):
    """ReLU MLP."""

    def __init__(self, config: T5Config, operations, **factory):
        super().__init__()
        self.wi = operations.Linear(config.d_model, config.d_ff, bias=False, **factory)
        self.wo = operations.Linear(config.d_ff, config.d_model, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(F.relu(self.wi(x)))


class GatedDense(nn.Module):
    """GELU-gated MLP."""

    def __init__(self, config: T5Config, operations, **factory):
        super().__init__()
        self.wi_0 = operations.Linear(config.d_model, config.d_ff, bias=False, **factory)
        self.wi_1 = operations.Linear(config.d_model, config.d_ff, bias=False, **factory)
        self.wo = operations.Linear(config.d_ff, config.d_model, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))


class DenseLayer(nn.Module):
    def __init__(self, config: T5Config, operations, **factory):
        super().__init__()
        dense = GatedDense if config.is_gated_act else Dense
        self.DenseReluDense = dense(config, operations, **factory)
        self.layer_norm = operations.RMSNorm(config.d_model, eps=NORM_EPS, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.DenseReluDense(self.layer_norm(x))


class Block(nn.Module):
    def __init__(self, config: T5Config, has_bias: bool, operations, **factory):
        super().__init__()
        self.layer = nn.ModuleList(
            [
                AttentionLayer(config, has_bias, operations, **factory),
                DenseLayer(config, operations, **factory),
            ]
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.layer[1](self.layer[0](x, bias))


class Stack(nn.Module):
    def __init__(self, config: T5Config, operations, **factory):
        super().__init__()
        self.block = nn.ModuleList(
            Block(config, i == 0 or not config.shared_bias, operations, **factory) for i in range(config.num_layers)
        )
        self.final_layer_norm = operations.RMSNorm(config.d_model, eps=NORM_EPS, **factory)

    def forward(self, x: Tensor, mask: Tensor | None, layer: int | None) -> tuple[Tensor, Tensor | None]:
        hidden = bias = None
        for index, block in enumerate(self.block):
            attention = block.layer[0].SelfAttention
            if attention.relative_attention_bias is not None:
                bias = attention.position_bias(x.shape[1], x.dtype, x.device)
                if mask is not None:
                    bias = bias + mask
            x = block(x, bias)
            if index == layer:
                hidden = x
        return self.final_layer_norm(x), hidden


class T5Encoder(nn.Module):
    """Token ids (or their embeddings) to hidden states."""

    def __init__(
        self,
        config: T5Config,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.num_layers = config.num_layers
        self.dtype = dtype
        self.shared = operations.Embedding(config.vocab_size, config.d_model, **factory)
        self.encoder = Stack(config, operations, **factory)

    def get_input_embeddings(self) -> nn.Module:
        return self.shared

    def set_input_embeddings(self, embeddings: nn.Module) -> None:
        self.shared = embeddings

    def embed(self, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Embeddings [batch, tokens, d_model] of ids: the place to put other vectors in."""
        return self.shared(tokens, out_dtype=dtype)

    def forward(
        self,
        tokens: Tensor | None = None,
        embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        layer: int | None = None,
        normalize_hidden: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor | None]:
        """The last hidden states, normed, and those after block `layer` (negative: from the end), or None.

        tokens: ids [batch, length]; embeds: [batch, length, d_model] in their stead; attention_mask: [batch,
        length], 0 where a token is not to be looked at (default: all are); dtype: of computing.
        """
        if embeds is None:
            if tokens is None:
                raise ValueError("either tokens or embeds must be given")
            embeds = self.embed(tokens, dtype)
        mask = None
        if attention_mask is not None:
            hidden_tokens = attention_mask[:, None, None, :] == 0
            mask = torch.zeros(hidden_tokens.shape, dtype=embeds.dtype, device=embeds.device)
            mask.masked_fill_(hidden_tokens.to(embeds.device), -torch.finfo(embeds.dtype).max)
        index = layer + self.num_layers if layer is not None and layer < 0 else layer
        last, hidden = self.encoder(embeds, mask, index)
        if hidden is not None and normalize_hidden:
            hidden = self.encoder.final_layer_norm(hidden)
        return last, hidden
