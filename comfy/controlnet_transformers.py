"""From tensors to the controls of diffusion transformers: Stable Diffusion 3, FLUX.1, Qwen-Image.

Who made a file shows in its names; see the networks in comfy/models/control_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

import comfy.latent_formats
from comfy.controlnet import ControlNet, ControlNetSD35
from comfy.model_base import load_assigned
from comfy.models import control_flux, control_mmdit, control_qwen, flux, qwen_image
from comfy.models.diffusers_layout import flux_config, mmdit_config, renamed_for

SD35_CANNY, SD35_DEPTH = 1, 2
LATENT_CHANNELS = 16

# (weights' dtype, dtype of computing where that is another, layers)
Dtypes = tuple[Any, Any, Any]


def load(sd: Mapping[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet | None:
    """The control that the tensors make; None if they are of none of these families.

    in_dtype: brings tensors to the dtype of the weights. Raises KeyError or WeightsMismatch for incomplete files.
    """
    loader = next((loader for mark, loader in _MAKES if mark in sd), None)
    return None if loader is None else loader(dict(sd), dtypes, in_dtype)


def _finished(network: nn.Module, sd: dict[str, Tensor], in_dtype: Callable[[dict], dict]) -> nn.Module:
    load_assigned(network, in_dtype(sd), "ControlNet")
    return network.eval()


def _factory(dtypes: Dtypes) -> dict[str, Any]:
    return {"dtype": dtypes[0], "device": "meta", "operations": dtypes[2]}


def _shapes(sd: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: value.shape for key, value in sd.items()}


# --- Stable Diffusion 3


def _sd3(sd: dict[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet:
    """InstantX's nets, and Alimama's, which see a mask beside the picture."""
    if "transformer_blocks.0.adaLN_modulation.1.bias" in sd:
        return _sd35(sd, dtypes, in_dtype)
    hint_channels = sd["pos_embed_input.proj.weight"].shape[1]
    network = control_mmdit.ControlNetMMDiT(mmdit_config(_shapes(sd)), hint_channels, **_factory(dtypes))
    latent_format = comfy.latent_formats.SD3()
    # Trained on latents that were not shifted.
    latent_format.shift_factor = 0.0
    return ControlNet(
        _finished(network, renamed_for(network, sd), in_dtype),
        compression_ratio=1,
        latent_format=latent_format,
        concat_mask=hint_channels > LATENT_CHANNELS,
        manual_cast_dtype=dtypes[1],
    )


_SD35_NAMES = {
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "pos_embed.proj": "x_embedder.proj",
}


def _sd35(sd: dict[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet:
    """Stability AI's nets for blurred pictures, edges and depth; the file says for which."""
    kind = round(sd.pop("control_type").float().item()) if "control_type" in sd else None
    renamed = {}
    for key, value in sd.items():
        layer, _, tensor = key.rpartition(".")
        renamed[f"{_SD35_NAMES.get(layer, layer)}.{tensor}"] = value
    network = control_mmdit.ControlNetSD35(control_mmdit.sd35_config_from_state_dict(renamed), **_factory(dtypes))
    return ControlNetSD35(
        _finished(network, renamed, in_dtype),
        compression_ratio=1,
        latent_format=comfy.latent_formats.SD3(),
        preprocess_image={SD35_CANNY: edges_as_trained, SD35_DEPTH: depth_as_trained}.get(kind, _as_it_is),
        manual_cast_dtype=dtypes[1],
    )


def _as_it_is(image: Tensor) -> Tensor:
    return image


def edges_as_trained(image: Tensor) -> Tensor:
    """Pictures 0..1 so that the autoencoder, which takes 2 * p - 1, sees 127.5 * image + 0.5: the values these nets
    were trained with (Stability AI's sd3.5 repository, "canny")."""
    return (image * 127.5 + 1.5) / 2.0


def depth_as_trained(image: Tensor) -> Tensor:
    """Near is white in the maps people have, and dark in those of the training."""
    return 1.0 - image


# --- FLUX.1


def _flux_latent(sd: dict[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet:
    """Nets in diffusers' layout."""
    if "txt_norm.weight" in sd:
        return _qwen(sd, dtypes, in_dtype)
    config = flux_config(_shapes(sd))
    hint_channels = sd["controlnet_x_embedder.weight"].shape[1] // config.patch_size**2
    modes = sd.get("controlnet_mode_embedder.weight")
    network = control_flux.ControlNetFlux(
        config, "latent", hint_channels, union_types=0 if modes is None else modes.shape[0], **_factory(dtypes)
    )
    return ControlNet(
        _finished(network, renamed_for(network, sd), in_dtype),
        compression_ratio=1,
        latent_format=comfy.latent_formats.Flux(),
        concat_mask=hint_channels > LATENT_CHANNELS,
        extra_conds=("y", "guidance"),
        manual_cast_dtype=dtypes[1],
    )


def _flux_pixels(sd: dict[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet:
    """XLabs' nets and MistoLine."""
    sd = {key.replace("pos_embed_input.", "controlnet_x_embedder."): value for key, value in sd.items()}
    make = "mistoline" if "controlnet_blocks.0.linear.weight" in sd else "xlabs"
    config = flux.config_from_state_dict(
        {**sd, "final_layer.linear.weight": sd["img_in.weight"].T}  # it has no last layer to tell this
    )
    network = control_flux.ControlNetFlux(config, make, **_factory(dtypes))
    return ControlNet(_finished(network, sd, in_dtype), extra_conds=("y", "guidance"), manual_cast_dtype=dtypes[1])


# --- Qwen-Image


def _qwen(sd: dict[str, Tensor], dtypes: Dtypes, in_dtype: Callable[[dict], dict]) -> ControlNet:
    width = sd["img_in.weight"].shape[1]
    config = qwen_image.config_from_state_dict(
        {**sd, "proj_out.weight": sd["img_in.weight"].T}  # it has no last layer to tell this
    )
    hint_width = sd["controlnet_x_embedder.weight"].shape[1]
    network = control_qwen.ControlNetQwenImage(config, hint_width, **_factory(dtypes))
    return ControlNet(
        _finished(network, sd, in_dtype),
        compression_ratio=1,
        latent_format=comfy.latent_formats.Wan21(),
        concat_mask=hint_width > width,
        extra_conds=("attention_mask",),
        manual_cast_dtype=dtypes[1],
    )


# A tensor that only these makes have; the first that is there decides.
_MAKES: tuple[tuple[str, Callable[..., ControlNet]], ...] = (
    ("double_blocks.0.img_attn.qkv.weight", _flux_pixels),
    ("pos_embed_input.proj.weight", _sd3),
    ("controlnet_x_embedder.weight", _flux_latent),
)
