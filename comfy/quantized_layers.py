"""Quantised weights in a model: layers are made ready for those of a file, and whoever works on weights finds their
numbers and stores others. The scales are buffers of the layers; `comfy.ops` applies them on each call.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from comfy.quantization import BLOCK_SCALE, SCALE, Quantization
from comfy.quantized_files import (
    INPUT_SCALE,
    INPUT_SCALE_NAMES,
    MARKER,
    QUANT,
    SCALE_NAMES,
    UnfitScales,
    entries_of,
    marker_of,
    quantization_of,
    scales_of,
    unmarked,
)

SCALE_BUFFERS = (SCALE, BLOCK_SCALE, INPUT_SCALE)


def place_scales(module: nn.Module, sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make the layers of `module` ready for the quantised weights of `sd`; returns `sd` with the scales under the
    buffers' names. Raises UnfitScales."""
    layers = dict(module.named_modules())
    out, quantized = dict(sd), {}
    for key, value in sd.items():
        path, _, name = key.rpartition(".")
        if name in (MARKER, QUANT):
            del out[key]
        layer = layers.get(path)
        if not hasattr(layer, "comfy_cast_weights") or f"{path}.weight" not in sd:
            continue
        if name == QUANT and (entries := entries_of(value)) is not None:
            quantized[path] = quantization_of(entries)
        elif name in SCALE_NAMES:
            quantized.setdefault(path, None)
        elif name in INPUT_SCALE_NAMES and value.nelement() == 1:
            layer.register_buffer(INPUT_SCALE, value.reshape(()))
            out[f"{path}.{INPUT_SCALE}"] = out.pop(key).reshape(())
    for path, quantization in quantized.items():
        _place(layers[path], f"{path}." if path else "", quantization, out)
    return out


def _place(layer: nn.Module, prefix: str, quantization: Quantization | None, sd: dict[str, Tensor]) -> None:
    """Prepare one layer. quantization: None if there is no marker, but a scale."""
    stored = sd[f"{prefix}weight"]
    known = quantization or unmarked(stored)
    weight = layer.weight
    if known.shape(stored.shape) != tuple(weight.shape):
        if quantization is None:
            return  # whoever loads tells what fits and what does not
        raise UnfitScales(f"{prefix}weight is {known.shape(stored.shape)}, {tuple(weight.shape)} was expected")
    scales = scales_of(known, sd, prefix, required=quantization is not None)
    if scales is None:
        return
    for buffer, (key, value) in scales.items():
        del sd[key]
        sd[f"{prefix}{buffer}"] = value
        layer.register_buffer(buffer, value)
    if stored.shape != weight.shape or not stored.is_floating_point():
        # The weight on the meta device gives way: packed weights have other shapes, and integers another kind.
        layer.weight = nn.Parameter(torch.empty_like(stored, device="meta"), requires_grad=False)
    layer.quantization = known
    layer.comfy_cast_weights = True


def scale_of(layer: nn.Module) -> Tensor | None:
    """The one scale of a layer's weight, or that of its rows; None where there is none."""
    return layer._buffers.get(SCALE)


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """The shape of a layer's weight, however it is stored."""
    quantization = getattr(layer, "quantization", None)
    return tuple(layer.weight.shape) if quantization is None else quantization.shape(layer.weight.shape)


def is_scale_buffer(key: str) -> bool:
    """Whether a model's tensor of that name is a scale."""
    return key.rpartition(".")[2] in SCALE_BUFFERS


def weight_key(key: str) -> str:
    """The name of the weight that the scale of that name belongs to; any other name as it is."""
    path, _, name = key.rpartition(".")
    return (f"{path}.weight" if path else "weight") if name in (SCALE, BLOCK_SCALE) else key


class QuantizedWeight:
    """The quantised weight of a model that has a certain name, and its scales.

    backup: tensors of the model as they were before patches, by name; they count.
    """

    def __init__(self, layer: nn.Module, prefix: str, backup: Mapping[str, Tensor]) -> None:
        self.quantization: Quantization = layer.quantization
        self._prefix = prefix
        self._input_scale = layer._buffers.get(INPUT_SCALE)
        self.scale_keys = {name: prefix + name for name in self.quantization.names}
        self.scales = {name: backup.get(key, layer._buffers[name]) for name, key in self.scale_keys.items()}

    @classmethod
    def find(cls, model: nn.Module, key: str, backup: Mapping[str, Tensor] | None = None) -> QuantizedWeight | None:
        """That of the model's weight of that name; None if it is none."""
        path, _, name = key.rpartition(".")
        if name != "weight":
            return None
        layer = model.get_submodule(path)
        if getattr(layer, "quantization", None) is None:
            return None
        return cls(layer, f"{path}." if path else "", backup or {})

    def values(self, stored: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers, in a new tensor."""
        return self.quantization.values(stored, self.scales, dtype)

    def store(self, values: Tensor, stored: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What stands for other numbers, and the scales by their names in the model; on the device of `values`."""
        weight, scales = self.quantization.store(values, stored, self.scales)
        return weight, {self.scale_keys[name]: scale for name, scale in scales.items()}

    def in_file(self, stored: Tensor, scales: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The tensors that a file has for the weight. scales: as `store` gives them; None: those of before."""
        out = {f"{self._prefix}weight": stored}
        if self.quantization.marker:
            out[f"{self._prefix}{QUANT}"] = marker_of(self.quantization.marker)
        for name, ending in self.quantization.names.items():
            scale = self.scales[name] if scales is None else scales[self.scale_keys[name]]
            out[self._prefix + ending] = scale
        if self._input_scale is not None:
            out[f"{self._prefix}input_scale"] = self._input_scale
        return out


def numbers_of(model: nn.Module, key: str, weight: Tensor, backup: Mapping[str, Tensor] | None = None) -> Tensor:
    """The numbers of the model's weight of that name: `weight` itself, in the dtype it has, unless it is quantised.
    backup: see `QuantizedWeight`."""
    quantized = QuantizedWeight.find(model, key, backup)
    return weight if quantized is None else quantized.values(weight)
