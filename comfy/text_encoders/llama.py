"""Language models used as text encoders: Llama 3, Mistral 3, Qwen 2.5 and 3, Gemma 2 and 3, in the layout of the
`transformers` library. What they read at once; to write, word by word, they are given a memory (see
`comfy.text_encoders.llm_cache`), and pictures become tokens elsewhere.

Sources: Touvron et al. 2023 (Llama: RMS norms, rotary positions, SiLU-gated MLPs), Ainslie et al. 2023 (keys shared by
several query heads), Yang et al. 2024 and 2025 (Qwen), Gemma Team 2024 and 2025 (norms on both sides of a branch;
alternating local and global attention).
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
from comfy.models.dit import count_blocks

GEMMA3_WINDOW = 1024
# In Gemma 3 every sixth layer looks at everything, the others at the words of the window before them.
GEMMA3_GLOBAL_EVERY = 6
MISTRAL3_VOCABULARY = 131072


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": gelu_tanh}
# Keys and values [batch, heads, tokens, width] of new tokens -> those of all that the tokens look at, the new included.
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Shape of the model.

    gemma: embeddings are scaled by the root of the width, norm weights are stored as offsets from 1, and every branch
    has a norm behind it too. sliding_window: words that local layers look back, None when all layers are global.
    local_rope_theta: of the local layers; rope_scale: what positions of the global ones are divided by.
    mrope_sections: pairs of a head that turn by time, by row and by column of a picture's tokens. final_softcap: what
    logits approach but never reach.
    """

    vocab_size: int = 128320
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    rope_scale: float = 1.0
    local_rope_theta: float = 10000.0
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    gemma: bool = False
    sliding_window: int | None = None
    mrope_sections: tuple[int, ...] = ()
    final_softcap: float | None = None

    def is_local(self, layer: int) -> bool:
        return self.sliding_window is not None and (layer + 1) % GEMMA3_GLOBAL_EVERY != 0


# What shapes do not tell, by family.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama3": {"rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "mistral3": {"rope_theta": 1e9, "rms_norm_eps": 1e-5},
    "qwen2.5": {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "mrope_sections": (16, 24, 24)},
    "qwen3": {"rope_theta": 1e6, "rms_norm_eps": 1e-6},
    "gemma2": {
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "head_dim": 256,
        "activation": "gelu_tanh",
        "final_softcap": 30.0,
    },
    "gemma3": {
        "rope_theta": 1e6,
        "rope_scale": 8.0,
        "rms_norm_eps": 1e-6,
        "activation": "gelu_tanh",
        "sliding_window": GEMMA3_WINDOW,
    },
}


def family_of(sd: Mapping[str, Tensor], prefix: str = "") -> str:
    """The key of FAMILIES that the tensors below `prefix` belong to. Raises KeyError naming a missing tensor."""
    layer = f"{prefix}model.layers.0."
    qk_norm = f"{layer}self_attn.q_norm.weight" in sd
    if f"{layer}pre_feedforward_layernorm.weight" in sd:
        return "gemma3" if qk_norm else "gemma2"
    if qk_norm:
        return "qwen3"
    if f"{layer}self_attn.q_proj.bias" in sd:
        return "qwen2.5"
    vocabulary = sd[f"{prefix}model.embed_tokens.weight"].shape[0]
    return "mistral3" if vocabulary == MISTRAL3_VOCABULARY else "llama3"


def config_from_state_dict(
    sd: Mapping[str, Tensor], prefix: str = "", family: str | None = None, **overrides: Any
) -> LlamaConfig:
    """Read the configuration from tensor names and shapes below `prefix`; `overrides` win. `family` (default: by the
    tensors) supplies what shapes do not tell.

    Raises KeyError naming a missing tensor.
    """

    def shape(name: str) -> torch.Size:
        return sd[prefix + name].shape

    family = family or family_of(sd, prefix)
    known = {**FAMILIES[family], **overrides}
    attention = "model.layers.0.self_attn."
    qk_norm = f"{prefix}{attention}q_norm.weight" in sd
    head = known.get("head_dim", shape(attention + "q_norm.weight")[0] if qk_norm else LlamaConfig.head_dim)
    vocab_size, hidden_size = shape("model.embed_tokens.weight")
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": shape("model.layers.0.mlp.gate_proj.weight")[0],
        "num_hidden_layers": count_blocks(sd, prefix + "model.layers.{}.self_attn.q_proj.weight"),
        "num_attention_heads": shape(attention + "q_proj.weight")[0] // head,
        "num_key_value_heads": shape(attention + "k_proj.weight")[0] // head,
        "head_dim": head,
        "qkv_bias": f"{prefix}{attention}q_proj.bias" in sd,
        "qk_norm": qk_norm,
        "gemma": f"{prefix}model.layers.0.pre_feedforward_layernorm.weight" in sd,
    }
    return LlamaConfig(**{**values, **known})


class LlamaOutput(NamedTuple):
    """last: [batch, tokens, width] after the final norm; hidden: the layer asked for, or None; all: [batch, layers +
    1, tokens, width], the input of each layer and the last output, or None."""

    last: Tensor
    hidden: Tensor | None
    all: Tensor | None


class OffsetRMSNorm(nn.Module):
    """RMS norm whose weight is stored as its distance from 1."""

    def __init__(self, width: int, eps: float, **factory):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, **factory), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        # In float32, as half precision has few digits left for a small distance from 1.
        weight = self.weight.to(device=x.device, dtype=torch.float32) + 1
        return F.rms_norm(x.float(), self.weight.shape, weight, self.eps).to(x.dtype)


def norm(config: LlamaConfig, width: int, operations, **factory) -> nn.Module:
    if config.gemma:
        return OffsetRMSNorm(width, config.rms_norm_eps, **factory)
    return operations.RMSNorm(width, eps=config.rms_norm_eps, **factory)


def rope_table(
    positions: Tensor, head: int, theta: float, scale: float, sections: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens, head / 2] in float32.

    positions: [tokens], or [axes, tokens] where pictures are among them; then `sections` says how many pairs turn by
    each axis.
    """
    exponents = torch.arange(0, head, 2, dtype=torch.float32, device=positions.device) / head
    frequencies = 1.0 / (theta**exponents) / scale
    angles = positions.float()[..., None] * frequencies
    if positions.ndim == 2:
        angles = torch.cat([part[axis] for axis, part in enumerate(angles.split(sections, dim=-1))], dim=-1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """`x` [batch, heads, tokens, head] with the pairs (x_i, x_{i + head / 2}) turned."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = table
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, operations, **factory):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        width, head, bias = config.hidden_size, config.head_dim, config.qkv_bias
        self.q_proj = operations.Linear(width, self.heads * head, bias=bias, **factory)
        self.k_proj = operations.Linear(width, self.kv_heads * head, bias=bias, **factory)
        self.v_proj = operations.Linear(width, self.kv_heads * head, bias=bias, **factory)
        self.o_proj = operations.Linear(self.heads * head, width, bias=False, **factory)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = norm(config, head, operations, **factory)
            self.k_norm = norm(config, head, operations, **factory)

    def forward(
        self, x: Tensor, table: tuple[Tensor, Tensor], mask: Tensor | None, remember: Remember | None = None
    ) -> Tensor:
        """x: [batch, tokens, width]. mask None: for one token that looks at all it remembers."""
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rope(q, table), apply_rope(k, table)
        if remember is not None:
            k, v = remember(k, v)
        if mask is None:
            # The query heads that share a key head stand in line as tokens do: nothing remembered is copied for them.
            q = q.reshape(q.shape[0], self.kv_heads, -1, q.shape[-1])
            out = optimized_attention(q, k, v, self.kv_heads, skip_reshape=True, skip_output_reshape=True)
            return self.o_proj(out.flatten(1).unsqueeze(1))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        return self.o_proj(optimized_attention(q, k, v, self.heads, mask=mask, skip_reshape=True))


class MLP(nn.Module):
    def __init__(self, config: LlamaConfig, operations, **factory):
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.activation = ACTIVATIONS[config.activation]
        self.gate_proj = operations.Linear(width, hidden, bias=False, **factory)
        self.up_proj = operations.Linear(width, hidden, bias=False, **factory)
        self.down_proj = operations.Linear(hidden, width, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, config: LlamaConfig, operations, **factory):
        super().__init__()
        width = config.hidden_size
        self.self_attn = Attention(config, operations, **factory)
        self.mlp = MLP(config, operations, **factory)
        self.input_layernorm = norm(config, width, operations, **factory)
        self.post_attention_layernorm = norm(config, width, operations, **factory)

    def forward(
        self, x: Tensor, table: tuple[Tensor, Tensor], mask: Tensor | None, remember: Remember | None = None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), table, mask, remember)
        # Here the name means: the norm in front of the MLP.
        return x + self.mlp(self.post_attention_layernorm(x))


class GemmaLayer(Layer):
    """Attention and MLP, each between two norms."""

    def __init__(self, config: LlamaConfig, operations, **factory):
        super().__init__(config, operations, **factory)
        self.pre_feedforward_layernorm = norm(config, config.hidden_size, operations, **factory)
        self.post_feedforward_layernorm = norm(config, config.hidden_size, operations, **factory)

    def forward(
        self, x: Tensor, table: tuple[Tensor, Tensor], mask: Tensor | None, remember: Remember | None = None
    ) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), table, mask, remember))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Stack(nn.Module):
    def __init__(self, config: LlamaConfig, operations, **factory):
        super().__init__()
        layer = GemmaLayer if config.gemma else Layer
        self.config = config
        self.embed_tokens = operations.Embedding(config.vocab_size, config.hidden_size, **factory)
        self.layers = nn.ModuleList(layer(config, operations, **factory) for _ in range(config.num_hidden_layers))
        self.norm = norm(config, config.hidden_size, operations, **factory)

    def masks(self, x: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is added to the scores [batch or 1, 1, query, key] of global and of local layers.

        Forbidden by a reason means a quarter of the lowest number, so that reasons add up without overflow; a word
        with nothing allowed to look at looks at what is forbidden for the fewest.
        """
        length, forbidden = x.shape[1], torch.finfo(x.dtype).min / 4
        everything = torch.ones(length, length, dtype=torch.bool, device=x.device)
        mask = torch.zeros(1, 1, length, length, dtype=x.dtype, device=x.device)
        if attention_mask is not None:
            hidden = attention_mask[:, None, None, :].to(x.device) == 0
            mask = mask + torch.zeros(hidden.shape, dtype=x.dtype, device=x.device).masked_fill(hidden, forbidden)
        mask = mask + torch.zeros_like(mask[:1]).masked_fill(everything.triu(1), forbidden)
        window = self.config.sliding_window
        if window is None:
            return mask, mask
        return mask, mask + torch.zeros_like(mask[:1]).masked_fill(everything.tril(-window), forbidden)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        layer: int | None,
        keep_all: bool,
        positions: Tensor | None = None,
    ) -> LlamaOutput:
        config = self.config
        mask, local_mask = self.masks(x, attention_mask)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        head, sections = config.head_dim, config.mrope_sections
        table = rope_table(positions, head, config.rope_theta, config.rope_scale, sections)
        local_table = rope_table(positions, head, config.local_rope_theta, 1.0, sections)
        if config.gemma:
            x = x * config.hidden_size**0.5
        hidden, inputs = None, []
        for index, block in enumerate(self.layers):
            if keep_all:
                inputs.append(x)
            local = config.is_local(index)
            x = block(x, local_table if local else table, local_mask if local else mask)
            if index == layer:
                hidden = x
        last = self.norm(x)
        return LlamaOutput(last, hidden, torch.stack([*inputs, last], dim=1) if keep_all else None)


class LlamaEncoder(nn.Module):
    """Token ids (or their embeddings) to hidden states."""

    def __init__(
        self,
        config: LlamaConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        self.config = config
        self.num_layers = config.num_hidden_layers
        self.dtype = dtype
        self.model = Stack(config, operations, dtype=dtype, device=device)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, embeddings: nn.Module) -> None:
        self.model.embed_tokens = embeddings

    def embed(self, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Embeddings [batch, tokens, width] of ids: the place to put other vectors in."""
        return self.model.embed_tokens(tokens, out_dtype=dtype)

    def forward(
        self,
        tokens: Tensor | None = None,
        embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        layer: int | None = None,
        normalize_hidden: bool = False,
        keep_all: bool = False,
        dtype: torch.dtype = torch.float32,
        positions: Tensor | None = None,
    ) -> LlamaOutput:
        """Run the model with its causal mask.

        tokens: ids [batch, length]; embeds: [batch, length, width] in their stead; attention_mask: [batch, length], 0
        where a token is not to be looked at (default: all are; positions count them all the same). layer: also return
        the output of this layer, negative ones counted from the end (-1: the last), with `normalize_hidden` after the
        final norm; keep_all: also return what went into every layer. dtype: of computing. positions: [tokens], or
        [3, tokens] with time, row and column where pictures are among the tokens (default: counted).
        """
        if embeds is None:
            if tokens is None:
                raise ValueError("either tokens or embeds must be given")
            embeds = self.embed(tokens, dtype)
        index = layer + self.num_layers if layer is not None and layer < 0 else layer
        out = self.model(embeds, attention_mask, index, keep_all, positions)
        if out.hidden is not None and normalize_hidden:
            out = out._replace(hidden=self.model.norm(out.hidden))
        return out
