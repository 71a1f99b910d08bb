"""The text transformer of CLIP in the layout of the `transformers` library (`text_model.*`).

Source: Radford et al. 2021. Used by Stable Diffusion 1 (ViT-L/14), 2 (ViT-H/14) and XL (L and bigG).

To train from scratch: `net = CLIPTextModel(config)`, then `comfy.ops.init_weights(net)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models.attention import optimized_attention

HEAD_WIDTH = 64


def quick_gelu(x: Tensor) -> Tensor:
    """The approximation OpenAI trained ViT-L with."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"quick_gelu": quick_gelu, "gelu": F.gelu}


@dataclasses.dataclass(frozen=True)
class CLIPTextConfig:
    """Shape of the transformer. projection_dim None: the file has no `text_projection`."""

    vocab_size: int = 49408
    max_position_embeddings: int = 77
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_act: str = "quick_gelu"
    eos_token_id: int = 49407
    projection_dim: int | None = None


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> CLIPTextConfig:
    """Read the configuration from tensor shapes below `prefix`; `overrides` win.

    Shapes tell neither heads nor activation: without an override the heads are 64 wide, and the activation is
    `quick_gelu` up to a width of 768 (ViT-L) and exact GELU above (H, bigG).
    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    vocab_size, width = shape("text_model.embeddings.token_embedding.weight")
    layers = 0
    while f"{prefix}text_model.encoder.layers.{layers}.layer_norm1.weight" in sd:
        layers += 1
    projection = f"{prefix}text_projection.weight"
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_position_embeddings": shape("text_model.embeddings.position_embedding.weight")[0],
        "hidden_size": width,
        "intermediate_size": shape("text_model.encoder.layers.0.mlp.fc1.weight")[0],
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "hidden_act": "quick_gelu" if width <= 768 else "gelu",
        "eos_token_id": vocab_size - 1,
        "projection_dim": sd[projection].shape[0] if projection in sd else None,
    }
    values.update(overrides)
    return CLIPTextConfig(**values)


class CLIPTextOutput(NamedTuple):
    """last: [batch, tokens, width] after the final norm; hidden: the layer asked for, or None; pooled: the
    final-normed row at the first end token [batch, width]; projected: pooled times the projection (pooled
    itself without one)."""

    last: Tensor
    hidden: Tensor | None
    pooled: Tensor
    projected: Tensor


class CLIPAttention(nn.Module):
    def __init__(self, width: int, heads: int, operations, **factory):
        super().__init__()
        self.heads = heads
        self.q_proj = operations.Linear(width, width, **factory)
        self.k_proj = operations.Linear(width, width, **factory)
        self.v_proj = operations.Linear(width, width, **factory)
        self.out_proj = operations.Linear(width, width, **factory)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = optimized_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads, mask=mask)
        return self.out_proj(out)


class CLIPMLP(nn.Module):
    def __init__(self, width: int, intermediate: int, activation: str, operations, **factory):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.fc1 = operations.Linear(width, intermediate, **factory)
        self.fc2 = operations.Linear(intermediate, width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class CLIPLayer(nn.Module):
    def __init__(self, config: CLIPTextConfig, operations, **factory):
        super().__init__()
        width = config.hidden_size
        self.layer_norm1 = operations.LayerNorm(width, **factory)
        self.self_attn = CLIPAttention(width, config.num_attention_heads, operations, **factory)
        self.layer_norm2 = operations.LayerNorm(width, **factory)
        self.mlp = CLIPMLP(width, config.intermediate_size, config.hidden_act, operations, **factory)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class CLIPEmbeddings(nn.Module):
    def __init__(self, config: CLIPTextConfig, operations, **factory):
        super().__init__()
        self.token_embedding = operations.Embedding(config.vocab_size, config.hidden_size, **factory)
        self.position_embedding = operations.Embedding(config.max_position_embeddings, config.hidden_size, **factory)

    def forward(self, tokens: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Rows of the token table, without positions."""
        return self.token_embedding(tokens, out_dtype=dtype)

    def add_positions(self, x: Tensor) -> Tensor:
        table = self.position_embedding.weight[: x.shape[1]]
        return x + table.to(device=x.device, dtype=x.dtype)


class CLIPEncoder(nn.Module):
    def __init__(self, config: CLIPTextConfig, operations, **factory):
        super().__init__()
        self.layers = nn.ModuleList(CLIPLayer(config, operations, **factory) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None, layer: int | None) -> tuple[Tensor, Tensor | None]:
        """Output of the last block and of block `layer` (0-based; None or out of range: none)."""
        hidden = None
        for index, block in enumerate(self.layers):
            x = block(x, mask)
            if index == layer:
                hidden = x
        return x, hidden


class CLIPTextTransformer(nn.Module):
    def __init__(self, config: CLIPTextConfig, operations, **factory):
        super().__init__()
        self.embeddings = CLIPEmbeddings(config, operations, **factory)
        self.encoder = CLIPEncoder(config, operations, **factory)
        self.final_layer_norm = operations.LayerNorm(config.hidden_size, **factory)


class CLIPTextModel(nn.Module):
    """Token ids (or their embeddings) to hidden states and one pooled vector."""

    def __init__(
        self,
        config: CLIPTextConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.num_layers = config.num_hidden_layers
        self.text_model = CLIPTextTransformer(config, operations, **factory)
        self.text_projection = None
        if config.projection_dim is not None:
            self.text_projection = operations.Linear(config.hidden_size, config.projection_dim, bias=False, **factory)

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.embeddings.token_embedding

    def set_input_embeddings(self, embeddings: nn.Module) -> None:
        self.text_model.embeddings.token_embedding = embeddings

    def embed(self, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Embeddings [batch, tokens, width] of ids, before positions: the place to put other vectors in."""
        return self.text_model.embeddings(tokens, dtype)

    def forward(
        self,
        tokens: Tensor | None = None,
        embeds: Tensor | None = None,
        end_index: Tensor | None = None,
        layer: int | None = None,
        normalize_hidden: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> CLIPTextOutput:
        """Run the transformer with its causal mask (padding is not masked).

        tokens: ids [batch, length]; embeds: [batch, length, width] in their stead, then `end_index` [batch]
        gives the position of the first end token (the last position when None).
        layer: also return the output of this block, negative ones counted from the end (-1 = last block);
        with `normalize_hidden` after the final norm. A number beyond the layers means the last. dtype: of
        computing.
        """
        if embeds is None:
            if tokens is None:
                raise ValueError("either tokens or embeds must be given")
            if end_index is None:
                # argmax of a 0/1 tensor is the first 1; a row without an end token counts as ending at its
                # start, as an all-zero row does.
                end_index = (tokens == self.config.eos_token_id).int().argmax(dim=-1)
            embeds = self.embed(tokens, dtype)
        x = self.text_model.embeddings.add_positions(embeds)
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype, device=x.device).triu(1)

        index = None
        if layer is not None:
            index = layer + self.num_layers if layer < 0 else layer
            if not 0 <= index < self.num_layers:
                index = self.num_layers - 1
        x, hidden = self.text_model.encoder(x, mask, index)
        last = self.text_model.final_layer_norm(x)
        if hidden is not None and normalize_hidden:
            hidden = self.text_model.final_layer_norm(hidden)

        if end_index is None:
            end_index = torch.full((x.shape[0],), length - 1, device=x.device)
        pooled = last[torch.arange(last.shape[0], device=last.device), end_index.to(last.device)]
        projected = pooled if self.text_projection is None else self.text_projection(pooled)
        return CLIPTextOutput(last, hidden, pooled, projected)
