"""From a file to a control: ControlNets of UNets in both layouts and of transformers, control LoRAs, differences to a
model, T2I-Adapters."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.model_management
import comfy.ops
import comfy.utils
from comfy.controlnet import Control, ControlBase, ControlLora, ControlNet, T2IAdapter
from comfy.model_base import load_assigned
from comfy.models import control_unet, t2i_adapter, unet
from comfy.models.diffusers_names import unet_encoder_own_names
from comfy.quantized_files import written_out
from comfy.quantized_layers import numbers_of
from comfy.weights import WeightsFileError, refusing

log = logging.getLogger(__name__)

LDM_PREFIX = "control_model."
# A control net whose file name ends so is used on the mean of its tensors (the shuffle net of ControlNet 1.1).
POOLED_NAME_ENDINGS = ("_shuffle", "_shuffle_fp16")

_HINT_PLACES = {"conv_in": 0, **{f"blocks.{i}": 2 * (i + 1) for i in range(6)}, "conv_out": 14}


class UnknownControlError(WeightsFileError):
    """A weight file is readable, but holds no control known here."""


@torch.inference_mode(False)
def load_controlnet(ckpt_path: str, model: Any = None, model_options: dict | None = None) -> ControlBase:
    """The control in a file. `model`: for files that hold only the difference to a model's weights.

    Raises WeightsFileError naming the file when it cannot be read (see its subclasses), UnknownControlError when it
    holds no control known here or its tensors do not fit.
    """
    options = dict(model_options or {})
    stem = os.path.splitext(os.path.basename(ckpt_path))[0]
    options.setdefault("global_average_pooling", stem.endswith(POOLED_NAME_ENDINGS))
    state_dict = comfy.utils.load_torch_file(ckpt_path)
    size = os.path.getsize(ckpt_path)
    example = next(iter(state_dict), "nothing")
    with refusing(ckpt_path, UnknownControlError):
        control = load_controlnet_state_dict(state_dict, model, options)
    if control is None:
        cause = f"it is no ControlNet or T2I-Adapter known here (its tensors are such as {example})"
        raise UnknownControlError(ckpt_path, size, cause)
    for patcher in control.get_models():
        patcher.model.weights_file = ckpt_path
    return control


@torch.inference_mode(False)
def load_controlnet_state_dict(
    state_dict: dict[str, Tensor], model: Any = None, model_options: dict | None = None, ckpt_path: str | None = None
) -> ControlBase | None:
    """The control that the tensors make; None if they are of no kind known here."""
    options = model_options or {}
    sd = dict(state_dict)
    if "lora_controlnet" in sd:
        del sd["lora_controlnet"]
        return ControlLora(sd, model_options=options)
    if "controlnet_cond_embedding.conv_in.weight" in sd:
        sd = _from_diffusers(sd)
    sd = {k.removeprefix(LDM_PREFIX): v for k, v in sd.items()}
    if "zero_convs.0.0.weight" in sd and "input_hint_block.0.weight" in sd:
        if "difference" in sd:
            sd = _added_to_model(sd, model)
        return _unet_control(sd, options)
    if "controlnet_blocks.0.weight" in sd or "controlnet_blocks.0.linear.weight" in sd:
        return _transformer_control(sd, options)
    return load_t2i_adapter(sd, options)


# --- ControlNets of UNets


def _unet_control(sd: dict[str, Tensor], options: Mapping[str, Any]) -> ControlNet:
    config = unet.config_from_state_dict(sd, encoder_only=True)
    sd = {k.replace(".attn.in_proj_", ".attn.in_proj."): v for k, v in sd.items()}
    union_types = sd["task_embedding"].shape[0] if "task_embedding" in sd else 0
    dtype, cast_dtype, operations = _dtypes(sd, options)
    network = control_unet.ControlNetUNet(
        config,
        hint_channels=sd["input_hint_block.0.weight"].shape[1],
        union_types=union_types,
        dtype=dtype,
        device="meta",
        operations=operations,
    )
    load_assigned(network, _in_dtype(sd, dtype, cast_dtype), "ControlNet")
    return ControlNet(
        network.eval(),
        global_average_pooling=options.get("global_average_pooling", False),
        manual_cast_dtype=cast_dtype,
    )


def _transformer_control(sd: dict[str, Tensor], options: Mapping[str, Any]) -> ControlNet | None:
    from comfy import controlnet_transformers

    dtypes = _dtypes(sd, options)
    return controlnet_transformers.load(sd, dtypes, lambda tensors: _in_dtype(tensors, *dtypes[:2]))


def _dtypes(sd: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[torch.dtype, torch.dtype | None, Any]:
    """(what weights rest in, what is computed in if that is something else, layers for it)."""
    management = comfy.model_management
    device = management.get_torch_device()
    dtype = options.get("dtype") or management.unet_dtype(
        device=device, model_params=comfy.utils.calculate_parameters(sd), weight_dtype=comfy.utils.weight_dtype(sd)
    )
    cast_dtype = management.unet_manual_cast(dtype, device)
    operations = options.get("custom_operations") or comfy.ops.pick_operations(dtype, cast_dtype)
    return dtype, cast_dtype, operations


def _in_dtype(sd: dict[str, Tensor], dtype: torch.dtype, cast_dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The tensors as they are where layers cast on each call; else all in one dtype."""
    if cast_dtype is not None:
        return sd
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in sd.items()}


def _from_diffusers(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A diffusers ControlNet under the names of the original."""
    renamed = {}
    sd = written_out(sd)
    own_names = unet_encoder_own_names(sd)
    for key, value in sd.items():
        layer, _, kind = key.rpartition(".")
        if layer.startswith("controlnet_cond_embedding."):
            place = _HINT_PLACES[layer.removeprefix("controlnet_cond_embedding.")]
            renamed[f"input_hint_block.{place}.{kind}"] = value
        elif layer.startswith("controlnet_down_blocks."):
            renamed[f"zero_convs.{layer.rsplit('.', 1)[1]}.0.{kind}"] = value
        elif layer == "controlnet_mid_block":
            renamed[f"middle_block_out.0.{kind}"] = value
        else:
            renamed[own_names.get(key, key)] = value
    return renamed


def _added_to_model(sd: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """A file that holds the difference to a model's weights, with these added."""
    del sd["difference"]
    if model is None:
        log.warning("this control net holds the difference to a model; load it with the model (Load ControlNet (diff))")
        return sd
    comfy.model_management.load_models_gpu([model])
    prefix = "diffusion_model."
    weights = model.model_state_dict(prefix).items()
    base = {k.removeprefix(prefix): numbers_of(model.model, k, v) for k, v in weights}
    return {k: v + base[k].to(v) if k in base and base[k].shape == v.shape else v for k, v in sd.items()}


# --- T2I-Adapters


@torch.inference_mode(False)
def load_t2i_adapter(t2i_data: Mapping[str, Tensor], model_options: dict | None = None) -> T2IAdapter | None:
    """The adapter that the tensors make, in either layout; None if they are none."""
    sd = _adapter_names({k.removeprefix("adapter."): v for k, v in t2i_data.items()})
    if "conv_in.weight" not in sd and "body.0.in_conv.weight" not in sd:
        return None
    if "body.0.block1.weight" not in sd and "body.0.body.0.block1.weight" not in sd:
        return None
    config = t2i_adapter.config_from_state_dict(sd)
    network = t2i_adapter.build(config, dtype=torch.float32, device="meta")
    load_assigned(network, {k: v.float() for k, v in sd.items()}, "T2I-Adapter")
    return T2IAdapter(network.eval(), config.picture_channels, 8, "nearest-exact")


def _adapter_names(sd: dict[str, Tensor]) -> dict[str, Tensor]:
    """diffusers nests blocks in levels; the original numbers them through, but nests those of light adapters too."""
    nested = re.compile(r"body\.(\d+)\.resnets\.(\d+)\.")
    matches = [match for key in sd if (match := nested.match(key))]
    if not matches:
        return sd
    if any(key.endswith("out_conv.weight") for key in sd):
        return {key.replace(".resnets.", ".body."): value for key, value in sd.items()}
    per_level = 1 + max(int(match[2]) for match in matches)
    renamed = {}
    for key, value in sd.items():
        if match := nested.match(key):
            key = f"body.{int(match[1]) * per_level + int(match[2])}.{key[match.end() :]}"
        elif match := re.match(r"body\.(\d+)\.", key):
            key = f"body.{int(match[1]) * per_level}.{key[match.end() :]}"
        renamed[key] = value
    return renamed


def adapter_places(features: Sequence[Tensor], wide: bool) -> Control:
    """Features of each level where the encoder takes them: after the last residual block of a level.

    For SDXL (`wide`) the first one follows the first downsampling and the last one the middle block. Lists are used
    from their end.
    """
    if wide:
        places: list[Tensor | None] = [None, None, None, features[0], None, features[1]]
        places += [None, None, features[2]] if len(features) > 3 else []
        return {"input": places[::-1], "middle": [features[-1]]}
    places = []
    for feature in features:
        places += [None, None, feature]
    return {"input": places[::-1]}
