"""What a patch does to a weight.

A patch list for one weight holds entries (strength, patch, strength_model, offset, function): the weight is
first scaled by `strength_model`, then the patch is added with `strength`. `offset` = (dim, start, length)
restricts it to a slice; `function` is applied to the change before it is added. A patch is

* `(None,)`: no change besides the factor,
* a plain tensor tuple `(tensor,)` or `("diff", (tensor,))`: weight += strength * tensor. `("diff", (tensor,
  {"pad_weight": True}))` grows the weight with zeros to the tensor's shape first,
* `("set", (tensor,))`: the weight becomes the tensor, whatever the strength,
* `("model_as_lora", (tensor,))`: weight += strength * (tensor - original weight),
* a list of entries: a weight of its own to begin with, patched itself first (merging of models),
* an object with `calculate_weight(weight, key, strength, strength_model, offset, function,
  intermediate_dtype, original_weights)`: adapters such as LoRA.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Entry = tuple[float, Any, float, tuple[int, int, int] | None, Callable[[Tensor], Tensor] | None]


def calculate_weight(
    patches: Sequence[Entry],
    weight: Tensor,
    key: str,
    intermediate_dtype: torch.dtype = torch.float32,
    original_weights: Mapping[str, Any] | None = None,
) -> Tensor:
    """`weight` (changed in place where that is possible) with all patches applied, in order.

    intermediate_dtype: of the arithmetic. original_weights: key -> [(weight, convert), ...] before any patch,
    for patches that refer to it. A patch that does not fit is logged with the key and left out.
    """
    for strength, patch, strength_model, offset, function in patches:
        target = weight if offset is None else weight.narrow(*offset)
        if strength_model != 1.0:
            target *= strength_model
        if hasattr(patch, "calculate_weight"):
            changed = patch.calculate_weight(
                target,
                key,
                strength,
                strength_model,
                None,
                function or _unchanged,
                intermediate_dtype,
                original_weights,
            )
        else:
            changed = _apply(target, patch, strength, key, function, intermediate_dtype, original_weights)
        if offset is None:
            weight = changed
        elif changed is not target:
            target.copy_(changed)
    return weight


def _apply(
    weight: Tensor,
    patch: Any,
    strength: float,
    key: str,
    function: Callable[[Tensor], Tensor] | None,
    dtype: torch.dtype,
    original_weights: Mapping[str, Any] | None,
) -> Tensor:
    if isinstance(patch, list):
        start, convert = patch[0]
        nested = convert(start.to(device=weight.device, dtype=dtype, copy=True))
        kind, values = "diff", (calculate_weight(patch[1:], nested, key, dtype),)
    elif len(patch) == 1:
        kind, values = "diff", patch
    else:
        kind, values = patch[0], patch[1]

    if values[0] is None:
        # Only the weight's own factor was wanted.
        return weight
    if kind == "set":
        if values[0].nelement() != weight.nelement():
            return _left_out(weight, values[0], key)
        return values[0].to(device=weight.device, dtype=weight.dtype, copy=True).reshape(weight.shape)
    if kind == "model_as_lora":
        original = original_weights[key][0][0].to(device=weight.device, dtype=dtype)
        values = (values[0].to(device=weight.device, dtype=dtype) - original,)
    elif kind != "diff":
        log.warning("patch of unknown kind %r on %s was left out", kind, key)
        return weight
    change = values[0].to(device=weight.device, dtype=dtype)
    if len(values) > 1 and values[1].get("pad_weight") and change.shape != weight.shape:
        weight = _grown(weight, change.shape)
    if strength == 0.0:
        return weight
    if change.shape != weight.shape:
        return _left_out(weight, change, key)
    change = change * strength
    weight += (function(change) if function is not None else change).to(weight.dtype)
    return weight


def _left_out(weight: Tensor, change: Tensor, key: str) -> Tensor:
    log.warning("patch of shape %s on %s of shape %s was left out", tuple(change.shape), key, tuple(weight.shape))
    return weight


def _grown(weight: Tensor, shape: torch.Size) -> Tensor:
    """`weight` in the corner of zeros of a larger shape."""
    out = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    out[tuple(slice(0, n) for n in weight.shape)] = weight
    return out


def _unchanged(change: Tensor) -> Tensor:
    return change
