"""Quantised weights in files: which layers have them, in which format, and under which names their scales are.

Older files with float8 ("scaled fp8") have `X.scale_weight` beside `X.weight`, and sometimes `X.scale_input`, the range
that inputs had when it was made, for matrix products in float8; a tensor named `scaled_fp8` marks them. Newer ones have
`X.weight_scale`, and in each layer `X.comfy_quant`, whose bytes are JSON that names the format; or the names of all
layers' formats are in the file's metadata (`_quantization_metadata`). The scales become buffers of their layers, and
`comfy.quantization` knows what to do with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from comfy.quantization import BLOCK_SCALE, MXFP8, NVFP4, SCALE, Quantization, Rotated, Scaled, to_dtype

__all__ = ["BLOCK_SCALE", "INPUT_SCALE", "SCALE", "to_dtype"]

log = logging.getLogger(__name__)

INPUT_SCALE, MARKER, QUANT = "scale_input", "scaled_fp8", "comfy_quant"
METADATA = "_quantization_metadata"
SCALE_BUFFERS = (SCALE, BLOCK_SCALE, INPUT_SCALE)
ROTATION_GROUP = 256  # where the marker does not tell
# What a marker may say besides that changes nothing here.
_IRRELEVANT = {"format", "full_precision_matrix_mult", "orig_dtype", "orig_shape", "per_channel", "is_weight"}
_ROTATION = {"convrot", "convrot_groupsize"}
# Parts of other programs' quantised layers.
_FOREIGN = {
    ".quant_state.bitsandbytes__nf4": "bitsandbytes nf4",
    ".quant_state.bitsandbytes__fp4": "bitsandbytes fp4",
    ".weight.absmax": "bitsandbytes",
    ".SCB": "bitsandbytes int8",
    ".qweight": "packed integers (GPTQ, AWQ or SVDQuant)",
}
_SCALE_NAMES = {SCALE, "weight_scale", "weight_scale_2"}
_INPUT_SCALE_NAMES = {INPUT_SCALE, "input_scale"}
_NAMES = _SCALE_NAMES | _INPUT_SCALE_NAMES
_SCALED_FORMATS = {"float8_e4m3fn", "float8_e5m2", "int8_tensorwise", "int8_rowwise"}


class UnfitScales(ValueError):
    """A quantised layer lacks a scale, or has one that cannot be meant for it. The message names the layer."""


# --- which format


def refusal(sd: Mapping[str, Tensor]) -> str | None:
    """Why the weights of a file are not read here, if they are stored as something else; None if all is well."""
    name = unread_format(sd)
    if name is None:
        return None
    return f"its weights are stored as {name}, which is not read here. Take the model's file in bf16, fp16, fp8 or int8"


def unread_format(sd: Mapping[str, Tensor]) -> str | None:
    """What the weights of a file are stored as, if that is something not read here."""
    told = set()
    for key, value in sd.items():
        if key.endswith(f".{QUANT}"):
            entries = _entries(value)
            if entries is None or _quantization(entries) is None:
                return _described(entries)
            told.add(key.removesuffix(QUANT) + "weight")
    for key, value in sd.items():
        for ending, name in _FOREIGN.items():
            if key.endswith(ending):
                return name
        if key in told:
            continue
        if key.endswith(".weight_scale_2"):
            if key.removesuffix("_scale_2") not in told:
                return "nvfp4 of another program"
        elif key.endswith(".weight") and value.ndim >= 2 and not (value.is_floating_point() or value.is_complex()):
            return f"integers ({str(value.dtype).removeprefix('torch.')})"
    return None


def _entries(marker: Tensor) -> dict[str, Any] | None:
    """What a layer's marker says; None if it cannot be read."""
    try:
        entries = json.loads(bytes(marker.flatten().tolist()))
        return {**entries, "format": str(entries["format"])}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _quantization(entries: Mapping[str, Any]) -> Quantization | None:
    """The format that a marker names; None if it is none of those read here."""
    name, more = entries["format"], {k for k, v in entries.items() if v and k not in _IRRELEVANT}
    if name.startswith("int8") and entries.get("convrot") and more <= _ROTATION:
        group = entries.get("convrot_groupsize") or ROTATION_GROUP
        return Rotated(entries, group) if isinstance(group, int) and _is_power_of_4(group) else None
    if more - _ROTATION or entries.get("convrot"):
        return None
    kinds: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {"mxfp8": MXFP8, "nvfp4": NVFP4}
    kind = Scaled if name in _SCALED_FORMATS else kinds.get(name)
    return None if kind is None else kind(entries)


def _is_power_of_4(number: int) -> bool:
    return number >= 4 and number & (number - 1) == 0 and number.bit_length() % 2 == 1


def _described(entries: Mapping[str, Any] | None) -> str:
    if entries is None:
        return "something that its marker does not tell"
    more = sorted(k for k, v in entries.items() if v and k not in _IRRELEVANT)
    return " with ".join([entries["format"], *more])


def with_markers(sd: dict[str, Tensor], metadata: Mapping[str, str] | None) -> dict[str, Tensor]:
    """`sd`, with a marker in each layer whose format the file's metadata tells."""
    try:
        layers = json.loads((metadata or {}).get(METADATA, "{}")).get("layers", {})
        formats = {k: v if isinstance(v, dict) else {"format": v} for k, v in layers.items()}
    except (ValueError, AttributeError):
        log.warning("the file's metadata about its quantised layers cannot be read")
        return sd
    for layer, entries in formats.items():
        if f"{layer}.weight" in sd:
            sd.setdefault(f"{layer}.{QUANT}", marker_of(entries))
    return sd


def marker_of(entries: Mapping[str, Any]) -> Tensor:
    """What a file has beside a quantised weight."""
    return torch.tensor(list(json.dumps(dict(entries)).encode()), dtype=torch.uint8)


# --- shapes


def with_shapes_of_values(sd: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors to read a configuration from: packed weights have the shape of their numbers, and no values."""
    out = None
    for key, value in sd.items():
        if key.endswith(f".{QUANT}") and (entries := _entries(value)) and (quantization := _quantization(entries)):
            name = key.removesuffix(QUANT) + "weight"
            stored = sd.get(name)
            if stored is not None and (shape := quantization.shape(stored.shape)) != tuple(stored.shape):
                out = dict(sd) if out is None else out
                out[name] = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return sd if out is None else out


def written_out(sd: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """The tensors with quantised weights as numbers, without scales and markers: for layouts that have to be changed,
    where weights are cut and joined. Raises UnfitScales."""
    if (why := refusal(sd)) is not None:
        raise UnfitScales(why)
    layers: dict[str, Quantization | None] = {}
    for key, value in sd.items():
        path, _, name = key.rpartition(".")
        if f"{path}.weight" in sd and (name == QUANT or name in _SCALE_NAMES):
            entries = _entries(value) if name == QUANT else None
            layers[path] = layers.get(path) or (_quantization(entries) if entries else None)
    out = dict(sd)
    for path, quantization in layers.items():
        stored = sd[f"{path}.weight"]
        known = quantization or Scaled({"format": str(stored.dtype).removeprefix("torch.")})
        found = _scales(known, sd, f"{path}.", required=quantization is not None)
        if found is not None:
            out[f"{path}.weight"] = known.values(stored, {buffer: v for buffer, (_, v) in found.items()}, dtype)
        for name in (QUANT, *_NAMES):
            out.pop(f"{path}.{name}", None)
    return {k: v for k, v in out.items() if k.rpartition(".")[2] != MARKER}


# --- into a module


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
        if name == QUANT and (entries := _entries(value)) is not None:
            quantized[path] = _quantization(entries)
        elif name in _SCALE_NAMES:
            quantized.setdefault(path, None)
        elif name in _INPUT_SCALE_NAMES and value.nelement() == 1:
            layer.register_buffer(INPUT_SCALE, value.reshape(()))
            out[f"{path}.{INPUT_SCALE}"] = out.pop(key).reshape(())
    for path, quantization in quantized.items():
        _place(layers[path], f"{path}." if path else "", quantization, out)
    return out


def _place(layer: nn.Module, prefix: str, quantization: Quantization | None, sd: dict[str, Tensor]) -> None:
    """Prepare one layer. quantization: None if there is no marker, but a scale."""
    stored = sd[f"{prefix}weight"]
    known = quantization or Scaled({"format": str(stored.dtype).removeprefix("torch.")})
    weight = layer.weight
    if known.shape(stored.shape) != tuple(weight.shape):
        if quantization is None:
            return  # whoever loads tells what fits and what does not
        raise UnfitScales(f"{prefix}weight is {known.shape(stored.shape)}, {tuple(weight.shape)} was expected")
    scales = _scales(known, sd, prefix, required=quantization is not None)
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


def _scales(
    quantization: Quantization, sd: Mapping[str, Tensor], prefix: str, required: bool
) -> dict[str, tuple[str, Tensor]] | None:
    """Buffer -> (name in the file, value as the layer has it) of a weight's scales. One that is missing or does not fit
    raises UnfitScales if they are required; else there are none."""
    stored, out = sd[f"{prefix}weight"], {}
    for buffer, ending in quantization.names.items():
        key = next((k for k in (f"{prefix}{ending}", f"{prefix}{buffer}") if k in sd), None)
        value = None if key is None else _fitting(sd[key], buffer, quantization, stored)
        if value is None and not required:
            return None
        if value is None:
            why = f"the file lacks {prefix}{ending}" if key is None else f"{key} is {tuple(sd[key].shape)}"
            raise UnfitScales(f"{prefix}weight is stored as {quantization.marker['format']}, and {why}")
        out[buffer] = (key, value)
    if isinstance(quantization, Rotated) and stored.shape[-1] % quantization.group:
        columns = stored.shape[-1]
        raise UnfitScales(f"{prefix}weight has {columns} columns, which were rotated by {quantization.group}")
    return out


def _fitting(scale: Tensor, buffer: str, quantization: Quantization, stored: Tensor) -> Tensor | None:
    """The scale as the layer's buffer; None where it cannot be meant for the weight."""
    if buffer == BLOCK_SCALE:
        rows, columns = quantization.shape(stored.shape)
        tiles = -(-rows // 128), -(-columns // quantization.block // 4)
        return scale if scale.element_size() == 1 and scale.nelement() == tiles[0] * tiles[1] * 512 else None
    if scale.nelement() == 1:
        return scale.reshape(())
    rows = None if stored.ndim < 2 else stored.shape[0]
    if rows is None or not isinstance(quantization, Scaled) or scale.nelement() != rows or scale.shape[0] != rows:
        return None
    return scale.reshape(rows, *[1] * (stored.ndim - 1))


def is_scaled(sd: Mapping[str, Tensor], key: str) -> bool:
    """Whether the file has a scale for the tensor of that name, or it is one: its format is as it is to be."""
    path, _, name = key.rpartition(".")
    return name in _NAMES or (name == "weight" and any(f"{path}.{scale}" in sd for scale in (SCALE, "weight_scale")))


def is_scale(key: str) -> bool:
    """Whether a file's tensor of that name is a scale."""
    return key.rpartition(".")[2] in _NAMES


# --- of a module


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
        out = {f"{self._prefix}weight": stored, f"{self._prefix}{QUANT}": marker_of(self.quantization.marker)}
        for name, ending in self.quantization.names.items():
            scale = self.scales[name] if scales is None else scales[self.scale_keys[name]]
            out[self._prefix + ending] = scale
        if self._input_scale is not None:
            out[f"{self._prefix}input_scale"] = self._input_scale
        return out


def numbers_of(model: nn.Module, key: str, weight: Tensor) -> Tensor:
    """The numbers of the model's weight of that name: `weight` itself, in the dtype it has, unless it is quantised."""
    quantized = QuantizedWeight.find(model, key)
    return weight if quantized is None else quantized.values(weight)
