"""Reading LoRA files: tensors grouped by the layer they change, whatever the trainer called the parts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from comfy.weights import WeightsFileError, load_torch_file

# End of a tensor's name -> part of an adapter (comfy.weight_adapter). The layer's name is what comes before.
_ENDINGS = {
    ".alpha": "alpha",
    ".dora_scale": "dora_scale",
    ".reshape_weight": "reshape_weight",
    # kohya-ss
    ".lora_up.weight": "up",
    ".lora_down.weight": "down",
    ".lora_mid.weight": "mid",
    # diffusers: attention processors, text encoders
    "_lora.up.weight": "up",
    "_lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".lora.down.weight": "down",
    ".lora_linear_layer.up.weight": "up",
    ".lora_linear_layer.down.weight": "down",
    # PEFT
    ".lora_B.weight": "up",
    ".lora_A.weight": "down",
    ".lora_B.default.weight": "up",
    ".lora_A.default.weight": "down",
    ".lora_B": "up",
    ".lora_A": "down",
    ".lora_B.bias": "diff_b",
    # LyCORIS
    **{f".hada_{part}": f"hada_{part}" for part in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")},
    **{f".lokr_{part}": f"lokr_{part}" for part in ("w1", "w2", "w1_a", "w1_b", "w2_a", "w2_b", "t2")},
    **{f".{part}.weight": part for part in ("a1", "a2", "b1", "b2")},
    ".oft_blocks": "oft_blocks",
    ".rescale": "rescale",
    # whole changes
    ".diff": "diff",
    ".diff_b": "diff_b",
    ".w_norm": "w_norm",
    ".b_norm": "b_norm",
    ".set_weight": "set_weight",
}
# Longest first: ".lora_B.weight" before what could be its end.
_BY_LENGTH = sorted(_ENDINGS, key=len, reverse=True)

# Key norms and query norms that FLUX control LoRAs bring along whole.
_CONTROL_NORM = re.compile(r"^(.*\.norm\.(?:query|key)_norm)\.scale$")


class NotALoraError(WeightsFileError):
    """A weight file is readable, but none of its tensors is part of a LoRA."""


def split_name(name: str) -> tuple[str, str] | None:
    """(layer, part) of a tensor's name; None if it is no part of an adapter."""
    for ending in _BY_LENGTH:
        if name.endswith(ending):
            return name[: -len(ending)], _ENDINGS[ending]
    return None


def load_lora_file(path: str) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    """(tensors, metadata) of a LoRA file. Raises WeightsFileError naming the file, also when it holds no LoRA."""
    tensors, metadata = load_torch_file(path, return_metadata=True)
    if not any(split_name(name) for name in tensors):
        size = os.path.getsize(path)
        example = f", such as {next(iter(tensors))}" if tensors else ""
        raise NotALoraError(path, size, f"none of its {len(tensors)} tensors is part of a LoRA{example}")
    return tensors, metadata


def convert_lora(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """The tensors under names that the key maps know, for files that need more than another name."""
    if _is_flux_control(tensors):
        return _from_flux_control(tensors)
    if any(name.startswith("lora_unet__blocks_") for name in tensors):
        # Wan-Fun files have one underscore more.
        return {name.replace("lora_unet__blocks_", "lora_unet_blocks_"): v for name, v in tensors.items()}
    return dict(tensors)


def _is_flux_control(tensors: Mapping[str, Tensor]) -> bool:
    """The control LoRAs of Black Forest Labs: the network's own names without a prefix, and whole norms."""
    return "img_in.lora_A.weight" in tensors and "single_blocks.0.norm.key_norm.scale" in tensors


def _from_flux_control(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if match := _CONTROL_NORM.match(name):
            out[f"diffusion_model.{match[1]}.set_weight"] = value
        else:
            out[f"diffusion_model.{name}"] = value
    up, down = tensors["img_in.lora_B.weight"], tensors["img_in.lora_A.weight"]
    # The picture that controls comes in through more input channels than the model has.
    out["diffusion_model.img_in.reshape_weight"] = torch.tensor([up.shape[0], down.shape[1]])
    return out


def grouped(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, list[str]], list[str]]:
    """(layer -> parts, layer -> the names of its tensors, names that are no parts)."""
    layers: dict[str, dict[str, Tensor]] = {}
    names: dict[str, list[str]] = {}
    others: list[str] = []
    for name, value in tensors.items():
        split = split_name(name)
        if split is None:
            others.append(name)
            continue
        layer, part = split
        layers.setdefault(layer, {})[part] = value
        names.setdefault(layer, []).append(name)
    return layers, names, others
