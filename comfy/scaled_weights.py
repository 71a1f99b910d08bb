"""Weights in float8 with one scale per layer or row ("scaled fp8" files).

Beside `X.weight` such a file has `X.scale_weight` (or `X.weight_scale`), the number that the stored values are to be
multiplied with, or one for each row, and sometimes `X.scale_input`, the range that inputs had when it was made, for
matrix products in float8. A tensor named `scaled_fp8` marks the file; newer files have `X.comfy_quant` in each layer,
whose bytes are JSON that names the format. The scales become buffers of their layers, and `comfy.ops` applies them on
each call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

SCALE, INPUT_SCALE, MARKER = "scale_weight", "scale_input", "scaled_fp8"
QUANT = "comfy_quant"
# Formats by the name that files give them, of which a weight is its stored values times its scale, and what a marker
# may say besides.
_READ_FORMATS = {"float8_e4m3fn", "float8_e5m2"}
_IRRELEVANT = {"format", "full_precision_matrix_mult"}
# Parts of other programs' quantised layers.
_FOREIGN = {
    ".quant_state.bitsandbytes__nf4": "bitsandbytes nf4",
    ".quant_state.bitsandbytes__fp4": "bitsandbytes fp4",
    ".weight.absmax": "bitsandbytes",
    ".SCB": "bitsandbytes int8",
    ".qweight": "packed integers (GPTQ, AWQ or SVDQuant)",
    ".weight_scale_2": "nvfp4",
}
_NAMES = {SCALE: SCALE, "weight_scale": SCALE, INPUT_SCALE: INPUT_SCALE, "input_scale": INPUT_SCALE}


def refusal(sd: Mapping[str, Tensor]) -> str | None:
    """Why the weights of a file are not read here, if they are stored as something else; None if all is well."""
    name = unread_format(sd)
    if name is None:
        return None
    return f"its weights are stored as {name}, which is not read here. Take the model's file in bf16, fp16 or fp8"


def unread_format(sd: Mapping[str, Tensor]) -> str | None:
    """What the weights of a file are stored as, if that is something not read here."""
    for key, value in sd.items():
        if key.endswith(f".{QUANT}") and (name := _named_format(value)) is not None:
            return name
    for key, value in sd.items():
        for ending, name in _FOREIGN.items():
            if key.endswith(ending):
                return name
        if key.endswith(".weight") and value.ndim >= 2 and not (value.is_floating_point() or value.is_complex()):
            return f"integers ({str(value.dtype).removeprefix('torch.')})"
    return None


def _named_format(marker: Tensor) -> str | None:
    """The format that a layer's marker names, if it is none of those read here."""
    try:
        entries = json.loads(bytes(marker.flatten().tolist()))
        name, more = entries["format"], sorted(k for k, v in entries.items() if v and k not in _IRRELEVANT)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "something that its marker does not tell"
    return None if name in _READ_FORMATS and not more else " with ".join([str(name), *more])


def place_scales(module: nn.Module, sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make room in the layers of `module` for the scales of `sd`; returns `sd` with them under the buffers' names."""
    layers = dict(module.named_modules())
    out = {}
    for key, value in sd.items():
        path, _, name = key.rpartition(".")
        layer = layers.get(path)
        if name in (MARKER, QUANT):
            continue
        known = name in _NAMES and hasattr(layer, "comfy_cast_weights")
        if known and (shape := _scale_shape(value, layer)) is not None:
            name = _NAMES[name]
            layer.register_buffer(name, value.reshape(shape))
            layer.comfy_cast_weights = True
            out[f"{path}.{name}"] = value.reshape(shape)
        else:
            out[key] = value
    return out


def _scale_shape(scale: Tensor, layer: nn.Module) -> tuple[int, ...] | None:
    """The shape in which a scale multiplies the layer's weight; None where it cannot be meant for it."""
    if scale.nelement() == 1:
        return ()
    weight = getattr(layer, "weight", None)
    rows = None if weight is None or weight.ndim < 2 else weight.shape[0]
    if rows is None or scale.nelement() != rows or scale.shape[0] != rows:
        return None
    return (rows, *[1] * (weight.ndim - 1))


def is_scaled(sd: Mapping[str, Tensor], key: str) -> bool:
    """Whether the file has a scale for the tensor of that name, or it is one: its format is as it is to be."""
    path, _, name = key.rpartition(".")
    return name in _NAMES or (name == "weight" and any(f"{path}.{scale}" in sd for scale in (SCALE, "weight_scale")))


def scale_of(layer: nn.Module) -> Tensor | None:
    """What the layer's stored weight is to be multiplied with; None where it is the weight itself."""
    return layer._buffers.get(SCALE)


def scale_for(model: nn.Module, key: str) -> Tensor | None:
    """As `scale_of`, for the tensor of that dotted name."""
    path, _, name = key.rpartition(".")
    return scale_of(model.get_submodule(path)) if name == "weight" else None


def scale_key(key: str) -> str:
    """The name of the scale of the weight of that name."""
    return key.removesuffix("weight") + SCALE


def weight_key(key: str) -> str:
    """The name of the weight that the scale of that name belongs to; any other name as it is."""
    return key.removesuffix(SCALE) + "weight" if key.endswith(f".{SCALE}") else key


def to_dtype(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight` in `dtype`; what float8 cannot hold becomes its largest number, not NaN."""
    if dtype.itemsize == 1 and dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        if limit < torch.finfo(weight.dtype).max:  # float8_e8m0fnu holds more than float16
            weight = weight.clamp(-limit, limit)
    return weight.to(dtype)
