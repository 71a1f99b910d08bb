"""Quantised weights in files: which layers have them, in which format, and under which names their scales are.

Older files with float8 ("scaled fp8") have `X.scale_weight` beside `X.weight`, and sometimes `X.scale_input`, the range
that inputs had when it was made, for matrix products in float8; a tensor named `scaled_fp8` marks them. Newer ones have
`X.weight_scale`, and in each layer `X.comfy_quant`, whose bytes are JSON that names the format; or the names of all
layers' formats are in the file's metadata (`_quantization_metadata`). What becomes of them in a model is in
`comfy.quantized_layers`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from comfy.quantization import BLOCK_SCALE, MXFP8, NVFP4, SCALE, Quantization, Rotated, Scaled

log = logging.getLogger(__name__)

INPUT_SCALE, MARKER, QUANT = "scale_input", "scaled_fp8", "comfy_quant"
METADATA = "_quantization_metadata"
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
SCALE_NAMES = {SCALE, "weight_scale", "weight_scale_2"}
INPUT_SCALE_NAMES = {INPUT_SCALE, "input_scale"}
_NAMES = SCALE_NAMES | INPUT_SCALE_NAMES
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
            entries = entries_of(value)
            if entries is None or quantization_of(entries) is None:
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


def entries_of(marker: Tensor) -> dict[str, Any] | None:
    """What a layer's marker says; None if it cannot be read."""
    try:
        entries = json.loads(bytes(marker.flatten().tolist()))
        return {**entries, "format": str(entries["format"])}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def quantization_of(entries: Mapping[str, Any]) -> Quantization | None:
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


def unmarked(stored: Tensor) -> Scaled:
    """The format of a weight that has a scale and no marker."""
    name = str(stored.dtype).removeprefix("torch.")
    return Scaled({"format": name} if name in _SCALED_FORMATS else {})


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
        if key.endswith(f".{QUANT}") and (entries := entries_of(value)) and (quantization := quantization_of(entries)):
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
        if f"{path}.weight" in sd and (name == QUANT or name in SCALE_NAMES):
            entries = entries_of(value) if name == QUANT else None
            layers[path] = layers.get(path) or (quantization_of(entries) if entries else None)
    out = dict(sd)
    for path, quantization in layers.items():
        stored = sd[f"{path}.weight"]
        known = quantization or unmarked(stored)
        found = scales_of(known, sd, f"{path}.", required=quantization is not None)
        if found is not None:
            out[f"{path}.weight"] = known.values(stored, {buffer: v for buffer, (_, v) in found.items()}, dtype)
        for name in (QUANT, *_NAMES):
            out.pop(f"{path}.{name}", None)
    return {k: v for k, v in out.items() if k.rpartition(".")[2] != MARKER}


def scales_of(
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
