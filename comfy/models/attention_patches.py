"""Patches around the attention of transformers, by the names and arguments that node packs use.

`transformer_options["patches"]` may list:

* `attn1_patch`: f(q, k, v, pe=, attn_mask=, extra_options=) -> dict of those that change, by these names. q, k, v are
  [batch, heads, tokens, head width], normed but not yet rotated; keys and values may become more or fewer.
* `attn1_output_patch`: f(out, options) -> out, [batch, tokens, width] before the output projection.
* `attn2_output_patch`: the same for an attention to the text alone; its output is all image, without `img_slice`.
* `post_input`: f(values) -> dict of those that change: `img` and `txt` [batch, tokens, width] as they enter the blocks,
  `img_ids` and `txt_ids` their positions.

`options` are the `transformer_options` with `img_slice` = [first, behind last] image token of the attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor


def _knows_positions(patch: Callable) -> bool:
    """Whether an input patch is written for transformers; those of UNets take four tensors and mean something else."""
    try:
        parameters = inspect.signature(patch).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "extra_options" or p.kind is p.VAR_KEYWORD for p in parameters)


def _options(options: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    return {**options, "img_slice": [start, end]}


def attention_inputs(
    options: dict[str, Any] | None, q: Tensor, k: Tensor, v: Tensor, pe: Tensor, mask: Tensor | None, text: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The five as `attn1_patch` leaves them. text: how many tokens come before the image's."""
    patches = (options or {}).get("patches", {}).get("attn1_patch")
    for patch in patches or ():
        if not _knows_positions(patch):
            continue
        out = patch(q, k, v, pe=pe, attn_mask=mask, extra_options=_options(options, text, q.shape[2])) or {}
        q, k, v = out.get("q", q), out.get("k", k), out.get("v", v)
        pe, mask = out.get("pe", pe), out.get("attn_mask", mask)
    return q, k, v, pe, mask


def attention_output(options: dict[str, Any] | None, out: Tensor, start: int, end: int | None = None) -> Tensor:
    """The output of a joint attention as `attn1_output_patch` leaves it. start, end: where the image's tokens are."""
    patches = (options or {}).get("patches", {}).get("attn1_output_patch")
    for patch in patches or ():
        out = patch(out, _options(options, start, out.shape[1] if end is None else end))
    return out


def cross_attention_output(options: dict[str, Any] | None, out: Tensor) -> Tensor:
    """The output of an attention to the text as `attn2_output_patch` leaves it."""
    patches = (options or {}).get("patches", {}).get("attn2_output_patch")
    for patch in patches or ():
        out = patch(out, dict(options))
    return out


def block_inputs(options: dict[str, Any] | None, **values: Any) -> dict[str, Any]:
    """`values` as `post_input` leaves them."""
    for patch in (options or {}).get("patches", {}).get("post_input", ()):
        values = {**values, **patch({**values, "transformer_options": options})}
    return values
