"""LoRA beside the weights instead of in them: each layer's own result, plus what the adapter makes of the same input.

The weights stay as they are in the file, which is of use where patching them would cost accuracy (8-bit weights) or
memory. Plain LoRA of linear layers and convolutions runs as two small layers; for every other kind of adapter the
patched weight is computed anew on each call.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.state_dicts
from comfy.held_weights import Held, HeldWeights, patcher_for
from comfy.lora import calculate_weight, convert_lora, load_lora, model_lora_keys_clip, model_lora_keys_unet
from comfy.patcher_extension import PatcherInjection
from comfy.quantized_layers import shape_of
from comfy.weight_adapter.base import MISFITS
from comfy.weight_adapter.lora import LoRAAdapter

log = logging.getLogger(__name__)

INJECTION = "lora_bypass"
WEIGHT = ".weight"
CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def load_bypass_lora_for_models(
    model: Any,
    clip: Any,
    lora: Mapping[str, Tensor],
    strength_model: float,
    strength_clip: float,
    lora_metadata: Mapping[str, str] | None = None,
) -> tuple[Any, Any]:
    """As `comfy.lora.load_lora_for_models`, with the adapters beside the weights. What is no layer's weight (biases,
    loose parameters) is patched as usual."""
    key_map: dict[str, Any] = {}
    if model is not None:
        model_lora_keys_unet(model.model, key_map)
    if clip is not None:
        model_lora_keys_clip(clip.cond_stage_model, key_map)
    patches = load_lora(convert_lora(lora, lora_metadata), key_map)
    new_model = new_clip = None
    if model is not None:
        new_model = model.clone()
        add_bypass(new_model, patches, strength_model)
    if clip is not None:
        new_clip = clip.clone()
        add_bypass(new_clip.patcher, patches, strength_clip)
    return new_model, new_clip


def add_bypass(patcher: Any, patches: Mapping[Any, Any], strength: float) -> None:
    """Add patches (as for `add_patches`) beside the weights of a patcher's model; those for other models are left
    out."""
    if strength == 0:
        return
    by_layer: dict[str, list[tuple]] = defaultdict(list)
    rest = {}
    modules = dict(patcher.model.named_modules())
    for target, patch in patches.items():
        name, offset, function = target, None, None
        if not isinstance(target, str):
            name, offset, function = target[0], target[1], target[2] if len(target) > 2 else None
        layer = modules.get(name.removesuffix(WEIGHT)) if name.endswith(WEIGHT) else None
        if layer is not None and hasattr(layer, "weight_function"):
            entry = (strength, patch, 1.0, offset, function)
            if _is_small(layer, entry) and (why := _misfit(layer, patch)) is not None:
                shape = shape_of(layer)
                log.error("%s does not fit %s of shape %s and was left out: %s", patch.name, name, shape, why)
                continue
            by_layer[name.removesuffix(WEIGHT)].append(entry)
        else:
            rest[target] = patch
    if rest:
        patcher.add_patches(rest, strength)
    injections = list(patcher.get_injections(INJECTION) or [])
    weights = LoraWeights()
    for name, entries in by_layer.items():
        weights.take(modules[name], entries)
        injections.append(_injection(name, entries, weights))
    patcher.set_injections(INJECTION, injections)
    if weights.pairs:
        patcher.add_additional_model(INJECTION, patcher_for(weights, patcher.load_device))


class LoraWeights(HeldWeights):
    """What runs beside a model's layers: up and down of each adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: dict[int, tuple[Held, Held]] = {}  # by the adapter's identity; entries keep the adapters

    def take(self, layer: nn.Module, entries: list[tuple]) -> None:
        """Hold the adapters of a layer, if they run as small layers."""
        if all(_is_small(layer, entry) for entry in entries):
            for _, adapter, *_rest in entries:
                if id(adapter) not in self.pairs:
                    self.pairs[id(adapter)] = self.add(adapter.parts["up"]), self.add(adapter.parts["down"])

    def of(self, adapter: LoRAAdapter, like: Tensor) -> tuple[Tensor, Tensor]:
        """Up and down in dtype and on the device of `like`."""
        pair = self.pairs.get(id(adapter))
        if pair is None:  # the layer was replaced by one of another kind
            return adapter.parts["up"].to(like), adapter.parts["down"].to(like)
        up, down = (part.values(like.dtype, like.device)[0] for part in pair)
        return up, down


def _injection(name: str, entries: list[tuple], weights: LoraWeights) -> PatcherInjection:
    """Puts the adapters of one layer in and takes them out again."""
    undo: list[Callable[[], None]] = []

    def inject(patcher: Any) -> None:
        layer = comfy.state_dicts.get_attr(patcher.model, name)
        if all(_is_small(layer, entry) for entry in entries):
            handle = layer.register_forward_hook(_beside(layer, entries, weights))
            undo.append(handle.remove)
            return
        before = layer.weight_function

        def patched(weight: Tensor) -> Tensor:
            changed = calculate_weight(entries, weight.to(torch.float32, copy=True), name + WEIGHT)
            return changed.to(weight.dtype)

        layer.weight_function = [*before, patched]
        undo.append(lambda: setattr(layer, "weight_function", before))

    def eject(patcher: Any) -> None:
        while undo:
            undo.pop()()

    return PatcherInjection(inject, eject)


def _is_small(layer: nn.Module, entry: tuple) -> bool:
    """Whether an entry can run as two small layers."""
    _, adapter, _, offset, function = entry
    if not isinstance(adapter, LoRAAdapter) or offset is not None or function is not None:
        return False
    if adapter.parts.keys() & {"mid", "dora_scale", "reshape_weight"}:
        return False
    return isinstance(layer, (nn.Linear, *CONVOLUTIONS))


def _misfit(layer: nn.Module, adapter: LoRAAdapter) -> Exception | None:
    """Why an adapter's change has not the shape of the layer's weight; None if it has."""
    try:
        adapter.delta(torch.empty(shape_of(layer), device="meta"), 1.0)
    except MISFITS as error:
        return error
    return None


def _beside(layer: nn.Module, entries: list[tuple], weights: LoraWeights) -> Callable:
    """A forward hook that adds up . down . input of each LoRA."""
    convolution = next((f for kind, f in CONVOLUTIONS.items() if isinstance(layer, kind)), None)

    def hook(_: nn.Module, args: tuple, output: Tensor) -> Tensor:
        x = args[0]
        for strength, adapter, *_rest in entries:
            up, down = weights.of(adapter, x)
            rank = down.shape[0]
            scale = strength * (1.0 if adapter.alpha is None else adapter.alpha / rank)
            if convolution is None:
                change = F.linear(F.linear(x, down.flatten(1)), up.flatten(1))
            else:
                down = down.reshape(rank, layer.in_channels // layer.groups, *layer.kernel_size)
                up = up.reshape(-1, rank, *([1] * len(layer.kernel_size)))
                low = convolution(x, down, None, layer.stride, layer.padding, layer.dilation)
                change = convolution(low, up)
            output = output + change.to(output.dtype) * scale
        return output

    return hook
