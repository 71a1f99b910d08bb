"""The face of LoRA: names to weights, files to patches, patches to a model.

`calculate_weight` is looked up here on each call, so that packs can replace it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from comfy.lora_files import convert_lora, grouped, load_lora_file
from comfy.lora_names import WEIGHT, clip_key_map, unet_key_map
from comfy.weight_adapter import adapters
from comfy.weight_patches import calculate_weight

__all__ = [
    "calculate_weight",
    "convert_lora",
    "load_lora",
    "load_lora_file",
    "load_lora_for_models",
    "model_lora_keys_clip",
    "model_lora_keys_unet",
]

log = logging.getLogger(__name__)

# How many names a warning shows of those that match nothing.
SHOWN_NAMES = 5


def model_lora_keys_unet(model: nn.Module, key_map: dict[str, Any] | None = None) -> dict[str, Any]:
    """`key_map` with all names for the weights of a diffusion model added (see `comfy.lora_names`)."""
    key_map = {} if key_map is None else key_map
    key_map.update(unet_key_map(model))
    return key_map


def model_lora_keys_clip(model: nn.Module, key_map: dict[str, Any] | None = None) -> dict[str, Any]:
    """`key_map` with all names for the weights of a text encoder model added."""
    key_map = {} if key_map is None else key_map
    key_map.update(clip_key_map(model))
    return key_map


def load_lora(lora: Mapping[str, Tensor], to_load: Mapping[str, Any], log_missing: bool = True) -> dict[Any, Any]:
    """Patches for `ModelPatcher.add_patches` from a LoRA's tensors.

    to_load: name -> weight, as `model_lora_keys_unet` makes it. Tensors that match nothing are reported in one warning
    with their number and the first names, unless `log_missing` is off.
    """
    layers, names, unmatched = grouped(lora)
    patches: dict[Any, Any] = {}
    for layer, parts in layers.items():
        target = to_load.get(layer)
        made = _patches_of(parts, target) if target is not None else {}
        if made:
            patches.update(made)
        else:
            unmatched += names[layer]
    if unmatched and log_missing:
        shown = ", ".join(unmatched[:SHOWN_NAMES]) + (", ..." if len(unmatched) > SHOWN_NAMES else "")
        log.warning("%d of %d tensors of the LoRA match nothing in the model: %s", len(unmatched), len(lora), shown)
    return patches


def _patches_of(parts: dict[str, Tensor], target: Any) -> dict[Any, Any]:
    """target -> patch for all that the parts of one layer change: its weight, and its bias."""
    out: dict[Any, Any] = {}
    for kind in adapters:
        adapter = kind.load(parts)
        if adapter is not None:
            out[target] = adapter
            break
    for part in ("diff", "w_norm"):
        if part in parts:
            out[target] = ("diff", (parts[part],))
    if "set_weight" in parts:
        out[target] = ("set", (parts["set_weight"],))
    for part in ("diff_b", "b_norm"):
        if part in parts and (bias := _bias_of(target)) is not None:
            out[bias] = ("diff", (parts[part],))
    return out


def _bias_of(target: Any) -> Any:
    """The bias beside a weight, in the same part of it."""
    if isinstance(target, str):
        return target.removesuffix(WEIGHT) + ".bias" if target.endswith(WEIGHT) else None
    bias = _bias_of(target[0])
    return None if bias is None else (bias, *target[1:])


def load_lora_for_models(
    model: Any,
    clip: Any,
    lora: Mapping[str, Tensor],
    strength_model: float,
    strength_clip: float,
    lora_metadata: Mapping[str, str] | None = None,
) -> tuple[Any, Any]:
    """Clones of a model and a text side (either may be None) with a LoRA added; the given ones stay as they are.

    A strength of 0 leaves that side unpatched.
    """
    key_map: dict[str, Any] = {}
    if model is not None:
        model_lora_keys_unet(model.model, key_map)
    if clip is not None:
        model_lora_keys_clip(clip.cond_stage_model, key_map)
    patches = load_lora(convert_lora(lora, lora_metadata), key_map)
    return _patched(model, patches, strength_model), _patched(clip, patches, strength_clip)


def _patched(patchable: Any, patches: dict[Any, Any], strength: float) -> Any:
    if patchable is None:
        return None
    clone = patchable.clone()
    if strength != 0:
        clone.add_patches(patches, strength)
    return clone
