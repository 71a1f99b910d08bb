"""CLIP files in the layout of open_clip (ViT-H of Stable Diffusion 2, ViT-bigG of XL) for `CLIPTextModel`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from comfy.quantized_files import written_out

# A tensor that only files in this layout have.
MARK = "transformer.resblocks.0.ln_1.weight"

_BLOCK = re.compile(
    r"transformer\.resblocks\.(\d+)\.(.+)\.(weight|bias)$|transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)$"
)
_OWN_BLOCK = re.compile(r"text_model\.encoder\.layers\.(\d+)\.(.+)\.(weight|bias)$")
_LAYERS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
_REST = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
}


def is_open_clip(sd: Mapping[str, Tensor], prefix: str = "") -> bool:
    """Whether the keys below `prefix` are in this layout."""
    return prefix + MARK in sd


def to_text_model(sd: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The text part below `prefix` under the names of `comfy.text_encoders.clip.CLIPTextModel`.

    Queries, keys and values are three views of open_clip's one tensor; the projection, which open_clip
    applies from the right, is transposed. Tensors with no place in the encoder (`logit_scale`, `attn_mask`,
    the image part) are left out; names already in the other layout (`text_projection.weight`, `text_model.*`)
    are kept. Raises UnfitScales where quantised weights lack their scales.
    """
    out: dict[str, Tensor] = {}
    for key, value in written_out({k: v for k, v in sd.items() if k.startswith(prefix)}).items():
        name = key[len(prefix) :]
        if name == "text_projection":
            out["text_projection.weight"] = value.transpose(0, 1).contiguous()
        elif name in _REST:
            out[_REST[name]] = value
        elif name == "text_projection.weight" or name.startswith("text_model."):
            out[name] = value
        elif match := _BLOCK.match(name):
            if match[4] is not None:
                width = value.shape[0] // 3
                for part, piece in zip("qkv", value.split(width)):
                    out[f"text_model.encoder.layers.{match[4]}.self_attn.{part}_proj.{match[5]}"] = piece
            elif match[2] in _LAYERS:
                out[f"text_model.encoder.layers.{match[1]}.{_LAYERS[match[2]]}.{match[3]}"] = value
    return out


def from_text_model(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_text_model`, for writing checkpoints."""
    layers = {own: other for other, own in _LAYERS.items()}
    rest = {own: other for other, own in _REST.items()}
    out: dict[str, Tensor] = {}
    for key, value in sd.items():
        if key == "text_projection.weight":
            out["text_projection"] = value.transpose(0, 1).contiguous()
        elif key in rest:
            out[rest[key]] = value
        elif match := _OWN_BLOCK.match(key):
            number, layer, kind = match.groups()
            block = f"transformer.resblocks.{number}"
            if layer in layers:
                out[f"{block}.{layers[layer]}.{kind}"] = value
            elif layer == "self_attn.q_proj":
                parts = (sd[key.replace("q_proj", f"{part}_proj")] for part in "qkv")
                out[f"{block}.attn.in_proj_{kind}"] = torch.cat(list(parts))
    return out
