"""Weights in float8 with one scale per layer ("scaled fp8" files).

Beside `X.weight` such a file has `X.scale_weight` (or `X.weight_scale`), the number that the stored values are to be
multiplied with, and sometimes `X.scale_input`, the range that inputs had when it was made, for matrix products in
float8. A tensor named `scaled_fp8` marks the file. The scales become buffers of their layers, and `comfy.ops` applies
them on each call.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

SCALE, INPUT_SCALE, MARKER = "scale_weight", "scale_input", "scaled_fp8"
_NAMES = {SCALE: SCALE, "weight_scale": SCALE, INPUT_SCALE: INPUT_SCALE, "input_scale": INPUT_SCALE}


def place_scales(module: nn.Module, sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make room in the layers of `module` for the scales of `sd`; returns `sd` with them under the buffers' names."""
    layers = dict(module.named_modules())
    out = {}
    for key, value in sd.items():
        path, _, name = key.rpartition(".")
        layer = layers.get(path)
        if name == MARKER:
            continue
        if name in _NAMES and hasattr(layer, "comfy_cast_weights") and value.nelement() == 1:
            name = _NAMES[name]
            layer.register_buffer(name, value.reshape(()))
            layer.comfy_cast_weights = True
            out[f"{path}.{name}"] = value.reshape(())
        else:
            out[key] = value
    return out


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
