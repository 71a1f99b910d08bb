"""Attention and the spatial transformer of the Stable Diffusion UNets.

Sources: Vaswani et al. 2017 (attention), Rombach et al. 2022, appendix (spatial transformer), Shazeer 2020
(GEGLU).

`transformer_options` carries what the outside wants changed, keyed the way node packs do it:

* `patches`: name -> list of callables
    - `attn1_patch`, `attn2_patch`: (q_input, k_input, v_input, options) -> the three, before their
      projections
    - `attn1_output_patch`, `attn2_output_patch`: (output, options) -> output
    - `middle_patch`: (x, options) -> x, between self-attention and cross-attention
* `patches_replace`: `attn1` / `attn2` -> {(block, number, index) or (block, number): callable}; the callable
  takes (q, k, v, options) after the projections and returns what the output projection gets.

`options` holds the entries of `transformer_options` (without the two above) plus `n_heads`, `dim_head`,
`attn_precision`, `block` = (input|middle|output, number) and `block_index` = place within the spatial
transformer.

* `optimized_attention_override`: called instead of the attention function in all networks, of any kind, with that
  function and its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.devices import attention_dtype

OVERRIDE = "optimized_attention_override"


def exists(x: object) -> bool:
    """Whether there is a value."""
    return x is not None


def default(val: object, d: object) -> object:
    """`val`, or `d` in place of None."""
    return val if exists(val) else d


# Of the network that is running: what replaces attention functions, and its `transformer_options`. They are looked up
# here since few callers of attention have the options at hand.
_override: Callable[..., Tensor] | None = None
_options: Mapping[str, Any] | None = None


@contextmanager
def options_in_force(options: Mapping[str, Any] | None) -> Iterator[None]:
    """While a network runs with these `transformer_options`."""
    global _override, _options
    before = _override, _options
    _override, _options = (options or {}).get(OVERRIDE), options
    try:
        yield
    finally:
        _override, _options = before


def wrap_attn(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let `optimized_attention_override` take the place of an attention function. The override gets the function and
    its arguments, with `transformer_options` among them; what it calls in turn is not replaced again."""

    @functools.wraps(function)
    def attention(*args: Any, **kwargs: Any) -> Tensor:
        given = kwargs.get("transformer_options")
        override = given.get(OVERRIDE) if given else _override
        if override is None or kwargs.get("_inside_attn_wrapper"):
            return function(*args, **kwargs)
        kwargs = {**kwargs, "transformer_options": given or _options, "_inside_attn_wrapper": True}
        with options_in_force(None):
            return override(function, *args, **kwargs)

    return attention


@wrap_attn
def attention_pytorch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    **kwargs,
) -> Tensor:
    """Multi-head attention with scale 1/sqrt(head width).

    q, k, v: [batch, tokens, heads * width], or [batch, heads, tokens, width] with `skip_reshape`.
    mask: added to the scores (float) or True where attention is allowed (bool), broadcastable to
    [batch, heads, q tokens, k tokens]; two- and three-dimensional masks lack heads (and batch).
    Returns [batch, tokens, heads * width], or [batch, heads, tokens, width] with `skip_output_reshape`.
    """
    if not skip_reshape:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    if mask is not None:
        while mask.ndim < 4:
            mask = mask.unsqueeze(0) if mask.ndim == 2 else mask.unsqueeze(1)
    dtype = v.dtype
    precision = attention_dtype(dtype, attn_precision)
    if dtype != precision:
        q, k, v = (t.to(precision) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(dtype)
    if skip_output_reshape:
        return out
    return out.transpose(1, 2).flatten(2)


@wrap_attn
def optimized_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    **kwargs,
) -> Tensor:
    """The attention that models use: see `attention_pytorch`, which picks the fastest kernel there is."""
    return attention_pytorch(
        query, key, value, heads, mask, attn_precision, skip_reshape, skip_output_reshape, **kwargs
    )


# A mask is no reason for another function here.
optimized_attention_masked = optimized_attention


class GEGLU(nn.Module):
    """value * gelu(gate), both from one projection; the value is its first half."""

    def __init__(self, dim_in: int, dim_out: int, dtype=None, device=None, operations=comfy.ops.disable_weight_init):
        super().__init__()
        self.proj = operations.Linear(dim_in, dim_out * 2, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """To `mult` times the width, a GELU (gated with `glu`), and to the width `dim_out` (default: back)."""

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        mult: int = 4,
        glu: bool = False,
        dropout: float = 0.0,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        inner = dim * mult
        factory = {"dtype": dtype, "device": device}
        self.net = nn.Sequential(
            GEGLU(dim, inner, operations=operations, **factory)
            if glu
            else nn.Sequential(operations.Linear(dim, inner, **factory), nn.GELU()),
            # Files number the output projection 2; the place of the dropout layer is kept without one, too.
            nn.Dropout(dropout) if dropout else nn.Identity(),
            operations.Linear(inner, dim_out or dim, **factory),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class CrossAttention(nn.Module):
    """Attention of x [batch, tokens, query_dim] to a context [batch, n, context_dim] (default: to itself)."""

    def __init__(
        self,
        query_dim: int,
        context_dim: int | None = None,
        heads: int = 8,
        dim_head: int = 64,
        dropout: float = 0.0,
        attn_precision: torch.dtype | None = None,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        inner = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim
        self.heads = heads
        self.dim_head = dim_head
        self.attn_precision = attn_precision
        self.to_q = operations.Linear(query_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_k = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_v = operations.Linear(context_dim, inner, bias=False, dtype=dtype, device=device)
        self.to_out = nn.Sequential(
            operations.Linear(inner, query_dim, dtype=dtype, device=device), nn.Dropout(dropout)
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        transformer_options: dict | None = None,
    ) -> Tensor:
        q, k, v = self.project(x, context, value)
        return self.to_out(optimized_attention(q, k, v, self.heads, mask=mask, attn_precision=self.attn_precision))

    def project(
        self, x: Tensor, context: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value before the split into heads. `value` replaces the context as source of v."""
        context = x if context is None else context
        value = context if value is None else value
        return self.to_q(x), self.to_k(context), self.to_v(value)


class BasicTransformerBlock(nn.Module):
    """Self-attention, cross-attention, feed-forward; each normed before and added to the residual after.

    Variants of video models (Blattmann et al. 2023, "Stable Video Diffusion"): `ff_in`, a feed-forward before
    everything, also to another width `inner_dim`; without the second attention
    (`disable_temporal_crossattention`), or with it to the tokens themselves (`switch_temporal_ca_to_sa`).
    `disable_self_attn`: the first attention looks at the context. `gated_ff=False`: GELU instead of GEGLU.
    `checkpoint` is accepted for the interface's sake.

    Raises ValueError when the second attention is both left out and switched.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        d_head: int,
        dropout: float = 0.0,
        context_dim: int | None = None,
        gated_ff: bool = True,
        checkpoint: bool = True,
        ff_in: bool = False,
        inner_dim: int | None = None,
        disable_self_attn: bool = False,
        disable_temporal_crossattention: bool = False,
        switch_temporal_ca_to_sa: bool = False,
        attn_precision: torch.dtype | None = None,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        if disable_temporal_crossattention and switch_temporal_ca_to_sa:
            raise ValueError("disable_temporal_crossattention leaves nothing for switch_temporal_ca_to_sa")
        factory = {"dtype": dtype, "device": device}
        heads = {
            "heads": n_heads,
            "dim_head": d_head,
            "dropout": dropout,
            "attn_precision": attn_precision,
            "operations": operations,
        }
        feed_forward = {"glu": gated_ff, "dropout": dropout, "operations": operations, **factory}
        self.ff_in = None
        if ff_in or inner_dim is not None:
            self.norm_in = operations.LayerNorm(dim, **factory)
            self.ff_in = FeedForward(dim, dim_out=inner_dim, **feed_forward)
        width = inner_dim or dim
        self.is_res = width == dim
        self.disable_self_attn = disable_self_attn
        self.switch_temporal_ca_to_sa = switch_temporal_ca_to_sa
        self.attn1 = CrossAttention(width, context_dim if disable_self_attn else None, **heads, **factory)
        self.ff = FeedForward(width, dim_out=dim, **feed_forward)
        self.attn2 = None
        if not disable_temporal_crossattention:
            self.attn2 = CrossAttention(width, None if switch_temporal_ca_to_sa else context_dim, **heads, **factory)
            self.norm2 = operations.LayerNorm(width, **factory)
        self.norm1 = operations.LayerNorm(width, **factory)
        self.norm3 = operations.LayerNorm(width, **factory)
        self.n_heads = n_heads
        self.d_head = d_head
        self.attn_precision = attn_precision

    def forward(self, x: Tensor, context: Tensor | None = None, transformer_options: dict | None = None) -> Tensor:
        transformer_options = transformer_options or {}
        if self.ff_in is not None:
            widened = self.ff_in(self.norm_in(x))
            x = x + widened if self.is_res else widened
        first = context if self.disable_self_attn else None
        second = None if self.switch_temporal_ca_to_sa else context
        if transformer_options.get("patches") or transformer_options.get("patches_replace"):
            x = self._forward_patched(x, first, second, transformer_options)
        else:
            x = x + self.attn1(self.norm1(x), first)
            if self.attn2 is not None:
                x = x + self.attn2(self.norm2(x), second)
        out = self.ff(self.norm3(x))
        return x + out if self.is_res else out

    def _forward_patched(
        self, x: Tensor, first: Tensor | None, second: Tensor | None, transformer_options: dict
    ) -> Tensor:
        """Both attentions, to the contexts `first` and `second`."""
        options = {k: v for k, v in transformer_options.items() if k not in ("patches", "patches_replace")}
        options["n_heads"] = self.n_heads
        options["dim_head"] = self.d_head
        options["attn_precision"] = self.attn_precision
        patches = transformer_options.get("patches", {})

        x = x + self._attend("attn1", self.attn1, self.norm1(x), first, transformer_options, options)
        for patch in patches.get("middle_patch", ()):
            x = patch(x, options)
        if self.attn2 is not None:
            x = x + self._attend("attn2", self.attn2, self.norm2(x), second, transformer_options, options)
        return x

    def _attend(
        self,
        name: str,
        attention: CrossAttention,
        x: Tensor,
        context: Tensor | None,
        transformer_options: dict,
        options: dict,
    ) -> Tensor:
        patches = transformer_options.get("patches", {})
        value = None
        if patches.get(f"{name}_patch"):
            context = x if context is None else context
            value = context
            for patch in patches[f"{name}_patch"]:
                x, context, value = patch(x, context, value, options)

        replacements = transformer_options.get("patches_replace", {}).get(name, {})
        block = transformer_options.get("block")
        replace = None
        if replacements and block is not None:
            exact = (block[0], block[1], transformer_options.get("block_index", 0))
            replace = replacements.get(exact, replacements.get(block))
        if replace is not None:
            q, k, v = attention.project(x, context, value)
            out = attention.to_out(replace(q, k, v, options))
        else:
            out = attention(x, context, value, transformer_options=transformer_options)

        for patch in patches.get(f"{name}_output_patch", ()):
            out = patch(out, options)
        return out


class SpatialTransformer(nn.Module):
    """Transformer blocks over the pixels of a feature map [batch, channels, height, width], as a residual.

    The projections in and out are 1x1 convolutions around the flattening (SD1) or linear layers inside it
    (`use_linear`: SD2, SDXL). `context` may be one tensor or a list with one per block, and so may its width
    `context_dim`. `use_checkpoint` is accepted for the interface's sake.
    """

    def __init__(
        self,
        in_channels: int,
        n_heads: int,
        d_head: int,
        depth: int = 1,
        dropout: float = 0.0,
        context_dim: int | list[int] | None = None,
        disable_self_attn: bool = False,
        use_linear: bool = False,
        use_checkpoint: bool = True,
        attn_precision: torch.dtype | None = None,
        dtype=None,
        device=None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        inner = n_heads * d_head
        self.in_channels = in_channels
        self.use_linear = use_linear
        self.norm = operations.GroupNorm(32, in_channels, eps=1e-6, **factory)
        if use_linear:
            self.proj_in = operations.Linear(in_channels, inner, **factory)
            self.proj_out = operations.Linear(inner, in_channels, **factory)
        else:
            self.proj_in = operations.Conv2d(in_channels, inner, kernel_size=1, **factory)
            self.proj_out = operations.Conv2d(inner, in_channels, kernel_size=1, **factory)
        context_dims = context_dim if isinstance(context_dim, list) else [context_dim] * depth
        self.transformer_blocks = nn.ModuleList(
            BasicTransformerBlock(
                inner,
                n_heads,
                d_head,
                dropout=dropout,
                context_dim=width,
                disable_self_attn=disable_self_attn,
                attn_precision=attn_precision,
                operations=operations,
                **factory,
            )
            for width in context_dims
        )

    def forward(
        self, x: Tensor, context: Tensor | list[Tensor] | None = None, transformer_options: dict | None = None
    ) -> Tensor:
        residual, (height, width) = x, x.shape[2:]
        transformer_options = {**(transformer_options or {}), "activations_shape": list(x.shape)}
        x = self._enter(x)
        for index, block in enumerate(self.transformer_blocks):
            transformer_options["block_index"] = index
            block_context = context[min(index, len(context) - 1)] if isinstance(context, list) else context
            x = block(x, block_context, transformer_options)
        return self._leave(x, height, width) + residual

    def _enter(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] -> [batch, pixels, width of the blocks]."""
        x = self.norm(x)
        if not self.use_linear:
            x = self.proj_in(x)
        x = x.flatten(2).transpose(1, 2)
        return self.proj_in(x) if self.use_linear else x

    def _leave(self, x: Tensor, height: int, width: int) -> Tensor:
        """The way back."""
        if self.use_linear:
            x = self.proj_out(x)
        x = x.transpose(1, 2).unflatten(2, (height, width))
        return x if self.use_linear else self.proj_out(x)
