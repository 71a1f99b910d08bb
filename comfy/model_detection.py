"""Which model family a state dict is of: from the tensors' names and shapes alone.

`detectors` is a list of functions (state_dict, prefix) -> network configuration as a dict, or None; the first
that answers decides. The configuration is then matched against the registry in `comfy.supported_models`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from comfy.models import (
    auraflow,
    chroma,
    flux,
    flux2,
    hidream,
    lumina2,
    mmdit,
    pixart,
    qwen_image,
    unet,
    wan,
    wan_camera,
    wan_vace,
)
from comfy.quantized_files import with_shapes_of_values

Detector = Callable[[Mapping[str, Tensor], str], dict[str, Any] | None]

# Where the tensors of the diffusion network are in a checkpoint.
UNET_PREFIXES = ("model.diffusion_model.", "model.model.", "net.", "diffusion_model.")
FALLBACK_PREFIX = "model."
# A prefix counts when more keys than this start with it.
MIN_KEYS = 5


class UnknownModel(ValueError):
    """The tensors belong to no family this program knows."""


def unet_prefix_from_state_dict(state_dict: Iterable[str]) -> str:
    """What the keys of the diffusion network start with."""
    keys = list(state_dict)
    if any(k.startswith("detector.") for k in keys) and any(k.startswith("tracker.") for k in keys):
        return ""
    counts = {prefix: sum(k.startswith(prefix) for k in keys) for prefix in UNET_PREFIXES}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] > MIN_KEYS else FALLBACK_PREFIX


def count_blocks(state_dict_keys: Iterable[str], prefix_string: str) -> int:
    """Number of consecutive blocks, for a pattern such as "layers.{}."."""
    keys = list(state_dict_keys)
    count = 0
    while any(k.startswith(prefix_string.format(count)) for k in keys):
        count += 1
    return count


def detect_sd_unet(state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Any] | None:
    """The UNet of Stable Diffusion 1, 2 and XL, and of the x4 upscaler."""
    if f"{prefix}input_blocks.0.0.weight" not in state_dict or f"{prefix}out.2.weight" not in state_dict:
        return None
    if f"{prefix}input_blocks.1.0.in_layers.0.weight" not in state_dict:
        return None
    return _as_dict("unet", unet.config_from_state_dict(state_dict, prefix))


def _as_dict(image_model: str, config: Any) -> dict[str, Any]:
    listed = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
    return {"image_model": image_model, **listed}


def transformer_detector(
    image_model: str,
    architecture: Any,
    marks: Iterable[str],
    without: Iterable[str] = (),
    overrides: Callable[[Mapping[str, Tensor], str], dict[str, Any]] | None = None,
) -> Detector:
    """A detector of networks that have all of the tensors `marks` and none of `without`.

    architecture: module of comfy/models whose `config_from_state_dict` reads the shapes; overrides: what shapes do not
    tell, from the tensors.
    """
    needed, excluded = tuple(marks), tuple(without)

    def detect(state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Any] | None:
        if any(prefix + mark not in state_dict for mark in needed):
            return None
        if any(prefix + mark in state_dict for mark in excluded):
            return None
        facts = overrides(state_dict, prefix) if overrides else {}
        return _as_dict(image_model, architecture.config_from_state_dict(state_dict, prefix, **facts))

    return detect


# Kontext, Redux and others give all networks of this frame the same tensors; video ones refine the text first.
_FLUX_FRAME = ("double_blocks.0.img_attn.qkv.weight", "img_in.weight", "txt_in.weight", "final_layer.linear.weight")

_PIXART = ("blocks.0.cross_attn.kv_linear.weight", "t_block.1.weight", "y_embedder.y_embedding")

# Where Wan's networks have their matrices. Others of the name take sounds, faces or poses in further places.
_WAN_PARTS = {
    "blocks",
    "head",
    "img_emb",
    "patch_embedding",
    "ref_conv",
    "text_embedding",
    "time_embedding",
    "time_projection",
}
_WAN_ADDITIONS = {
    "vace_patch_embedding.weight": (wan_vace, {"vace_patch_embedding", "vace_blocks"}),
    "control_adapter.conv.weight": (wan_camera, {"control_adapter"}),
}


def detect_wan(state_dict: Mapping[str, Tensor], prefix: str) -> dict[str, Any] | None:
    """Wan 2.1 and 2.2 and what differs from them in channels alone."""
    if any(prefix + mark not in state_dict for mark in ("head.modulation", "blocks.0.self_attn.norm_q.weight")):
        return None
    own = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
    architecture, parts = next((v for mark, v in _WAN_ADDITIONS.items() if mark in own), (wan, set()))
    if any(v.ndim > 1 and k.partition(".")[0] not in _WAN_PARTS | parts for k, v in own.items()):
        return None
    return _as_dict("wan2.1", architecture.config_from_state_dict(own))


detectors: list[Detector] = [
    detect_sd_unet,
    transformer_detector("mmdit", mmdit, ["joint_blocks.0.context_block.attn.qkv.weight", "pos_embed"]),
    transformer_detector("auraflow", auraflow, ["cond_seq_linear.weight", "positional_encoding"]),
    # Alpha is told size and aspect ratio.
    transformer_detector("pixart_alpha", pixart, [*_PIXART, "csize_embedder.mlp.0.weight"]),
    transformer_detector("pixart_sigma", pixart, _PIXART),
    transformer_detector("chroma", chroma, [*_FLUX_FRAME, "distilled_guidance_layer.in_proj.weight"]),
    transformer_detector("flux2", flux2, [*_FLUX_FRAME, "double_stream_modulation_img.lin.weight"]),
    transformer_detector("flux", flux, [*_FLUX_FRAME, "double_blocks.0.img_mod.lin.weight"]),
    transformer_detector("lumina2", lumina2, ["cap_embedder.1.weight", "noise_refiner.0.attention.qkv.weight"]),
    transformer_detector("qwen_image", qwen_image, ["txt_norm.weight", "transformer_blocks.0.img_mod.1.weight"]),
    transformer_detector(
        "hidream", hidream, ["caption_projection.0.linear.weight", "p_embedder.pooled_embedder.linear_1.weight"]
    ),
    detect_wan,
]


def detect_unet_config(
    state_dict: Mapping[str, Tensor], key_prefix: str, metadata: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """Configuration of the network below `key_prefix`; None if no detector knows it."""
    for detector in detectors:
        config = detector(state_dict, key_prefix)
        if config is not None:
            return config
    return None


def unet_config_from_diffusers_unet(
    state_dict: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> dict[str, Any] | None:
    """Configuration of a UNet whose tensors have diffusers' names; None if they are of another network. dtype: noted in
    it."""
    from comfy.models.diffusers_layout import unet_config

    config = unet_config({key: value.shape for key, value in state_dict.items()})
    return None if config is None else {**_as_dict("unet", config), "dtype": dtype}


def convert_config(unet_config: Mapping[str, Any]) -> dict[str, Any]:
    """A UNet's configuration in the manner of latent diffusion (blocks and attention by level: `num_res_blocks`,
    `attention_resolutions`, one `transformer_depth`) with lists of what each block has instead."""
    config = dict(unet_config)
    mults = config.get("channel_mult") or (1, 2, 4, 8)
    blocks = config.get("num_res_blocks", 2)
    blocks = [blocks] * len(mults) if isinstance(blocks, int) else list(blocks)
    config["num_res_blocks"] = blocks
    if "attention_resolutions" not in config:
        return config
    looked_at = config.pop("attention_resolutions") or ()
    depth = config.pop("transformer_depth", 1)
    depths = [depth] * len(mults) if isinstance(depth, int) else list(depth)
    # Resolutions are told by how many times smaller than the latent they are.
    by_level = [d if 2**level in looked_at else 0 for level, d in enumerate(depths)]
    config["transformer_depth"] = [d for d, count in zip(by_level, blocks) for _ in range(count)]
    config["transformer_depth_output"] = [d for d, count in zip(by_level, blocks) for _ in range(count + 1)]
    if config.get("transformer_depth_middle") is None:
        config["transformer_depth_middle"] = depths[-1]
    return config


def model_config_from_unet_config(
    unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None
) -> Any:
    """The registry's entry for a configuration, as an instance; None if none matches."""
    import comfy.supported_models

    for family in comfy.supported_models.models:
        if family.matches(unet_config, state_dict):
            return family(unet_config)
    return None


def model_config_from_unet(
    state_dict: Mapping[str, Tensor],
    unet_key_prefix: str,
    use_base_if_no_match: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """The registry's entry for the network below a prefix; None if it is unknown."""
    state_dict = with_shapes_of_values(state_dict)
    unet_config = detect_unet_config(state_dict, unet_key_prefix, metadata=metadata)
    if unet_config is None:
        return None
    model_config = model_config_from_unet_config(unet_config, state_dict)
    if model_config is None and use_base_if_no_match:
        from comfy.supported_models_base import BASE

        return BASE(unet_config)
    return model_config
