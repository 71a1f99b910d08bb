"""Which weight of a model a name in a LoRA file means.

Trainers name layers by their own conventions: kohya-ss scripts (`lora_unet_...`, `lora_te...` with underscores), PEFT
and diffusers (`transformer....`, `text_encoder....`), LyCORIS, OneTrainer (`lora_transformer_...`), or by the model's
own names. The tables here hold all of them side by side: name -> weight, or (weight, (dim, start, length)) for a part
of a fused weight, or (weight, None, function) where the change has to be turned.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from comfy.models.diffusers_names import Shapes, diffusers_names

NETWORK = "diffusion_model."
WEIGHT = ".weight"

KeyMap = dict[str, Any]

# What comes before a diffusers name of a transformer, with its dots kept or turned into underscores.
_DOTTED_PREFIXES = ("", NETWORK, "transformer.", "base_model.model.", "unet.base_model.model.")
_UNDERSCORE_PREFIXES = ("lycoris_", "lora_transformer_")

# CLIP's layers that trainers change, and the prefix in front of them.
_CLIP_LAYER = re.compile(
    r"^(clip_[lhg])\.transformer\.text_model\.(encoder\.layers\.\d+\.(?:mlp\.fc[12]|self_attn\.(?:[qkv]|out)_proj))\.weight$"
)
_T5_LAYER = re.compile(r"^(?:t5xxl|t5base|umt5xxl)\.transformer\.(.*)\.weight$")


def unet_key_map(model: nn.Module) -> KeyMap:
    """All names for the weights of a diffusion model (its network is `diffusion_model`)."""
    shapes = {k.removeprefix(NETWORK): v.shape for k, v in model.state_dict().items() if k.startswith(NETWORK)}
    out: KeyMap = {}
    for name in shapes:
        if name.endswith(WEIGHT):
            layer = name.removesuffix(WEIGHT)
            out["lora_unet_" + _underscored(layer)] = NETWORK + name
            out[NETWORK + layer] = NETWORK + name
        else:
            out[NETWORK + name] = NETWORK + name
    _add_diffusers_names(out, shapes)
    for name in [n for n in shapes if n.startswith("single_blocks.") and n.endswith(".linear1.weight")]:
        # FLUX: the attention's rows of the fused layer by themselves.
        layer = name.removesuffix(WEIGHT)
        width = shapes[layer.replace("linear1", "linear2") + WEIGHT][0]
        out[f"{NETWORK}{layer}_qkv"] = (NETWORK + name, (0, 0, 3 * width))
    return out


def _add_diffusers_names(out: KeyMap, shapes: Shapes) -> None:
    is_unet = "input_blocks.0.0.weight" in shapes
    for name, place in diffusers_names(shapes).items():
        if not name.endswith(WEIGHT):
            continue
        layer = name.removesuffix(WEIGHT)
        target = NETWORK + place if isinstance(place, str) else (NETWORK + place[0], *place[1:])
        if is_unet:
            out["lora_unet_" + _underscored(layer)] = target
            out["lycoris_" + _underscored(layer)] = target
            # The attention projections' changes are kept by the layer's processor.
            processor = layer.replace(".to_", ".processor.to_").removesuffix(".0" if ".to_out.0" in layer else "")
            out[processor] = out["unet." + processor] = target
            continue
        for prefix in _DOTTED_PREFIXES:
            out.setdefault(prefix + layer, target)
        for prefix in _UNDERSCORE_PREFIXES:
            out[prefix + _underscored(layer)] = target


def clip_key_map(model: nn.Module) -> KeyMap:
    """All names for the weights of a text side, whose encoders are members named `clip_l`, `clip_g`, `t5xxl`, ..."""
    keys = list(model.state_dict())
    has_l = any(k.startswith("clip_l.") for k in keys)
    has_g = any(k.startswith("clip_g.") for k in keys)
    out: KeyMap = {}
    for key in keys:
        if key.endswith(WEIGHT):
            out["text_encoders." + key.removesuffix(WEIGHT)] = key
        if match := _CLIP_LAYER.match(key):
            for prefix, dotted in _clip_prefixes(match[1], has_l):
                layer = f"text_model.{match[2]}"
                out[prefix + (layer if dotted else _underscored(layer))] = key
        if match := _T5_LAYER.match(key):
            # T5 is counted after the CLIP encoders.
            out[f"lora_te{1 + has_l + has_g}_{_underscored(match[1])}"] = key
    for encoder, names in (
        ("clip_g", ("lora_prior_te_text_projection", "lora_te2_text_projection")),
        ("clip_l", ("lora_te1_text_projection",)),
    ):
        key = f"{encoder}.transformer.text_projection.weight"
        if key in keys:
            out.update((name, key) for name in names)
    return out


def _clip_prefixes(encoder: str, has_l: bool) -> tuple[tuple[str, bool], ...]:
    """(prefix, whether the name keeps its dots) for one encoder."""
    if encoder == "clip_g" and has_l:
        return (("lora_te2_", False), ("text_encoder_2.", True))
    if encoder == "clip_g":
        return (("lora_te_", False), ("lora_prior_te_", False), ("text_encoder.", True))
    if encoder == "clip_h":
        return (("lora_te_", False), ("lora_te1_", False), ("text_encoder.", True))
    return (("lora_te_", False), ("lora_te1_", False), ("text_encoder.", True))


def _underscored(name: str) -> str:
    return name.replace(".", "_")
