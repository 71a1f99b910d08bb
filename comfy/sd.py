"""From a file to a model, a text encoder and an autoencoder.

Networks are built on the meta device and get the file's own tensors as weights: nothing is initialised,
nothing copied, and a safetensors file stays memory-mapped until a page is needed. A float16 file on a CPU
stays float16; each layer is cast to float32 as it runs (comfy.ops.manual_cast). Upcasting once would double
the memory for a gain of a few per cent per step (bench/load.py prints both).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

import comfy.clip_vision
import comfy.model_management
import comfy.utils
from comfy import model_detection
from comfy.lora import load_lora_for_models
from comfy.model_patcher import ModelPatcher
from comfy.model_sampling import ModelType, model_sampling
from comfy.models.diffusers_layout import to_own_layout
from comfy.quantized_files import refusal
from comfy.style_model import StyleModel, load_style_model
from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import families
from comfy.text_encoders.clip_handle import CLIP
from comfy.vae.vae import VAE, InvalidVAE
from comfy.weights import WeightsFileError, refusing

__all__ = [
    "CLIP",
    "VAE",
    "CLIPType",
    "InvalidVAE",
    "StyleModel",
    "UnknownModelError",
    "load_checkpoint",
    "load_checkpoint_guess_config",
    "load_clip",
    "load_diffusion_model",
    "load_diffusion_model_state_dict",
    "load_gligen",
    "load_lora_for_models",
    "load_state_dict_guess_config",
    "load_style_model",
    "load_text_encoder_state_dicts",
    "load_unet",
    "load_unet_state_dict",
    "load_vae",
    "model_detection",
    "save_checkpoint",
]

log = logging.getLogger(__name__)


class UnknownModelError(WeightsFileError):
    """A weight file is readable, but holds no model of a family known here."""


class CLIPType(Enum):
    """For which family a text encoder file is to be used."""

    STABLE_DIFFUSION = 1
    STABLE_CASCADE = 2
    SD3 = 3
    STABLE_AUDIO = 4
    HUNYUAN_DIT = 5
    FLUX = 6
    MOCHI = 7
    LTXV = 8
    HUNYUAN_VIDEO = 9
    PIXART = 10
    COSMOS = 11
    LUMINA2 = 12
    WAN = 13
    HIDREAM = 14
    CHROMA = 15
    ACE = 16
    OMNIGEN2 = 17
    QWEN_IMAGE = 18
    HUNYUAN_IMAGE = 19
    HUNYUAN_VIDEO_15 = 20
    OVIS = 21
    KANDINSKY5 = 22
    KANDINSKY5_IMAGE = 23
    NEWBIE = 24
    FLUX2 = 25
    LONGCAT_IMAGE = 26
    COGVIDEOX = 27
    LENS = 28
    PIXELDIT = 29
    IDEOGRAM4 = 30
    BOOGU = 31
    KREA2 = 32
    JOYIMAGE = 33
    MAGE = 34
    MINIMAX = 35


# --- checkpoints


def load_checkpoint_guess_config(
    ckpt_path: str,
    output_vae: bool = True,
    output_clip: bool = True,
    output_clipvision: bool = False,
    embedding_directory: str | Sequence[str] | None = None,
    output_model: bool = True,
    model_options: Mapping[str, Any] | None = None,
    te_model_options: Mapping[str, Any] | None = None,
    disable_dynamic: bool = False,
) -> tuple[ModelPatcher | None, CLIP | None, VAE | None, Any]:
    """(model, clip, vae, image encoder) of a checkpoint file; the last is None unless asked for and there.

    A checkpoint without text encoder gives None for it, one without autoencoder a VAE that raises InvalidVAE
    when used. embedding_directory: where the text encoder looks for textual inversions.

    Raises WeightsFileError when the file cannot be read (its subclasses say why), UnknownModelError when its
    tensors are no diffusion model known here or do not fit together.
    """
    sd, metadata = comfy.utils.load_torch_file(ckpt_path, return_metadata=True)
    with refusing(ckpt_path, UnknownModelError):
        out = load_state_dict_guess_config(
            sd,
            output_vae,
            output_clip,
            output_clipvision,
            embedding_directory,
            output_model,
            model_options,
            te_model_options=te_model_options,
            metadata=metadata,
            folders=[os.path.dirname(ckpt_path)],
        )
    if out is None:
        raise UnknownModelError(ckpt_path, os.path.getsize(ckpt_path), _guess_what(sd))
    return out


def load_checkpoint(
    config_path: str | None = None,
    ckpt_path: str | None = None,
    output_vae: bool = True,
    output_clip: bool = True,
    embedding_directory: str | Sequence[str] | None = None,
    state_dict: dict[str, Tensor] | None = None,
    config: Any = None,
) -> tuple[ModelPatcher | None, CLIP | None, VAE | None]:
    """As `load_checkpoint_guess_config`. A configuration file (`config_path`) is not needed; of one, what the network
    predicts and the text encoder's layer are used, which tensors do not tell. Raises WeightsFileError for either."""
    from comfy.model_config_files import ModelConfigFile, read_config_file

    facts = ModelConfigFile() if config_path is None else read_config_file(config_path)
    if state_dict is not None:
        out = load_state_dict_guess_config(state_dict, output_vae, output_clip, False, embedding_directory)
        if out is None:
            raise model_detection.UnknownModel(_guess_what(state_dict))
    else:
        out = load_checkpoint_guess_config(ckpt_path, output_vae, output_clip, embedding_directory=embedding_directory)
    model, clip, vae = out[:3]
    if facts.velocity and model is not None and model.model.model_type != ModelType.V_PREDICTION:
        model.model.model_type = ModelType.V_PREDICTION
        model.model.model_sampling = model_sampling(model.model.model_config, ModelType.V_PREDICTION)
    if facts.clip_layer is not None and clip is not None:
        clip.clip_layer(facts.clip_layer)
    return model, clip, vae


@torch.inference_mode(False)
def load_state_dict_guess_config(
    sd: dict[str, Tensor],
    output_vae: bool = True,
    output_clip: bool = True,
    output_clipvision: bool = False,
    embedding_directory: str | Sequence[str] | None = None,
    output_model: bool = True,
    model_options: Mapping[str, Any] | None = None,
    te_model_options: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    disable_dynamic: bool = False,
    folders: Sequence[str] = (),
) -> tuple[ModelPatcher | None, CLIP | None, VAE | None, Any] | None:
    """As `load_checkpoint_guess_config` from tensors (those used are taken out of `sd`); None if unknown.

    folders: where to look for vocabularies that the tensors do not bring along.
    """
    prefix = model_detection.unet_prefix_from_state_dict(sd)
    model_config = model_detection.model_config_from_unet(sd, prefix, metadata=metadata)
    if model_config is None:
        # Perhaps a diffusion network alone, without a checkpoint's prefix.
        model = load_diffusion_model_state_dict(sd, model_options=model_options, metadata=metadata)
        return None if model is None else (model, None, VAE(sd={}), None)

    model = _diffusion_model(sd, prefix, model_config, model_options) if output_model else None

    vae = None
    if output_vae:
        prefixes = dict.fromkeys(model_config.vae_key_prefix, "")
        vae_sd = comfy.utils.state_dict_prefix_replace(sd, prefixes, filter_keys=True)
        vae = VAE(sd=model_config.process_vae_state_dict(vae_sd), metadata=metadata)

    clip = None
    if output_clip:
        clip_sd = model_config.process_clip_state_dict(sd)
        target = model_config.clip_target(clip_sd)
        missing = [n for n in model_config.text_encoders if not any(k.startswith(f"{n}.") for k in clip_sd)]
        if not clip_sd:
            log.warning("the checkpoint holds no text encoder")
        elif target is None:
            log.warning("text encoders of %s cannot be used yet", type(model_config).__name__)
        elif missing:
            log.warning("the checkpoint lacks the text encoder %s; the others are not loaded", " and ".join(missing))
        else:
            clip = _text_side(target, clip_sd, embedding_directory, te_model_options, folders)
    vision = None
    if output_clipvision:
        vision = comfy.clip_vision.load_clipvision_from_sd(sd, model_config.clip_vision_prefix)
    if sd:
        log.debug("%d tensors of the checkpoint are not used, such as %s", len(sd), next(iter(sd)))
    return model, clip, vae, vision


def _diffusion_model(
    sd: dict[str, Tensor], prefix: str, model_config: Any, model_options: Mapping[str, Any] | None
) -> ModelPatcher:
    """The network below `prefix`, behind a patcher. Options: `dtype` (what weights rest in),
    `custom_operations`, `load_device`, `offload_device`."""
    options = model_options or {}
    management = comfy.model_management
    load_device = options.get("load_device", management.get_torch_device())
    offload_device = options.get("offload_device", management.unet_offload_device())
    supported = model_config.supported_inference_dtypes
    file_dtype = comfy.utils.weight_dtype(sd, prefix)
    dtype = options.get("dtype") or management.unet_dtype(
        device=load_device,
        model_params=comfy.utils.calculate_parameters(sd, prefix),
        supported_dtypes=supported,
        weight_dtype=file_dtype,
    )
    model_config.set_inference_dtype(dtype, management.unet_manual_cast(dtype, load_device, supported))
    model_config.convert_weights = dtype != file_dtype
    model_config.load_device = torch.device(load_device)
    if "custom_operations" in options:
        model_config.custom_operations = options["custom_operations"]
    model = model_config.get_model(sd, prefix, device="meta")
    model.load_model_weights(sd, prefix)
    log.info(
        "%s, weights in %s, computing in %s on %s",
        type(model_config).__name__,
        dtype,
        model.get_dtype_inference(),
        load_device,
    )
    return ModelPatcher(model, load_device=load_device, offload_device=offload_device)


# --- single parts


def load_diffusion_model(
    unet_path: str, model_options: Mapping[str, Any] | None = None, disable_dynamic: bool = False
) -> ModelPatcher:
    """A diffusion network from a file of its own. Raises WeightsFileError or UnknownModelError."""
    sd, metadata = comfy.utils.load_torch_file(unet_path, return_metadata=True)
    with refusing(unet_path, UnknownModelError):
        model = load_diffusion_model_state_dict(sd, model_options=model_options, metadata=metadata)
    if model is None:
        raise UnknownModelError(unet_path, os.path.getsize(unet_path), _guess_what(sd))
    return model


@torch.inference_mode(False)
def load_diffusion_model_state_dict(
    sd: dict[str, Tensor],
    model_options: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    disable_dynamic: bool = False,
) -> ModelPatcher | None:
    """A diffusion network from its tensors, with or without a checkpoint's prefix or in the layout of diffusers; None
    if it is unknown."""
    for prefix in dict.fromkeys((model_detection.unet_prefix_from_state_dict(sd), "")):
        model_config = model_detection.model_config_from_unet(sd, prefix, metadata=metadata)
        if model_config is not None:
            return _diffusion_model(sd, prefix, model_config, model_options)
    converted = to_own_layout(sd)
    if converted is not None:
        model_config = model_detection.model_config_from_unet(converted, "", metadata=metadata)
        if model_config is not None:
            return _diffusion_model(converted, "", model_config, model_options)
    return None


def load_unet(unet_path: str, dtype: torch.dtype | None = None) -> ModelPatcher:
    """Older name of `load_diffusion_model`."""
    return load_diffusion_model(unet_path, model_options={"dtype": dtype})


def load_unet_state_dict(sd: dict[str, Tensor], dtype: torch.dtype | None = None) -> ModelPatcher | None:
    """Older name of `load_diffusion_model_state_dict`."""
    return load_diffusion_model_state_dict(sd, model_options={"dtype": dtype})


def load_clip(
    ckpt_paths: Sequence[str],
    embedding_directory: str | Sequence[str] | None = None,
    clip_type: CLIPType = CLIPType.STABLE_DIFFUSION,
    model_options: Mapping[str, Any] | None = None,
    disable_dynamic: bool = False,
) -> CLIP:
    """A text side from the files of its encoders. Raises WeightsFileError or UnknownModelError."""
    state_dicts = [comfy.utils.load_torch_file(path) for path in ckpt_paths]
    folders = list(dict.fromkeys(os.path.dirname(path) for path in ckpt_paths))
    kinds = []
    for path, sd in zip(ckpt_paths, state_dicts):
        with refusing(path, UnknownModelError):
            kinds.append(families.recognise(sd))
        if kinds[-1] is None:
            cause = f"it is no text encoder known here for {clip_type.name.lower()} ({_guess_what(sd, 'text encoder')})"
            raise UnknownModelError(path, os.path.getsize(path), cause)
    path = ckpt_paths[0]
    try:
        with refusing(path, UnknownModelError):
            clip = load_text_encoder_state_dicts(
                state_dicts, embedding_directory, clip_type, model_options, folders=folders
            )
    except UnknownModelError as error:
        # The text side names its tensors by their encoder.
        for other, kind in zip(ckpt_paths, kinds):
            if f"{kind.name}.transformer." in error.cause:
                raise UnknownModelError(other, os.path.getsize(other), error.cause) from error.__cause__
        raise
    if clip is None:
        names = " and ".join(kind.name for kind in kinds)
        cause = f"no text side known here for {clip_type.name.lower()} is made of {names}"
        raise UnknownModelError(path, os.path.getsize(path), cause)
    return clip


def load_text_encoder_state_dicts(
    state_dicts: Sequence[dict[str, Tensor]],
    embedding_directory: str | Sequence[str] | None = None,
    clip_type: CLIPType = CLIPType.STABLE_DIFFUSION,
    model_options: Mapping[str, Any] | None = None,
    disable_dynamic: bool = False,
    folders: Sequence[str] = (),
) -> CLIP | None:
    """A text side from tensors; None if they are of no encoder known here, or of none for that type.

    folders: where to look for vocabularies that the tensors do not bring along.
    """
    files = [families.recognise(sd) for sd in state_dicts]
    if not files or None in files:
        return None
    target = families.text_side([file.name for file in files], clip_type.name.lower())
    if target is None:
        return None
    tensors = {k: v for file in files for k, v in file.tensors.items()}
    tensors.update({k: v for sd in state_dicts for k, v in sd.items() if k.endswith(VOCABULARY_KEYS)})
    return _text_side(target, tensors, embedding_directory, model_options, folders)


# A vocabulary inside a weights file, as bytes.
VOCABULARY_KEYS = ("spiece_model", "tekken_model")


def _text_side(
    target: ClipTarget,
    sd: dict[str, Tensor],
    embedding_directory: str | Sequence[str] | None,
    model_options: Mapping[str, Any] | None,
    folders: Sequence[str],
) -> CLIP:
    """The text side `target` of tensors named as its model names them."""
    embedded = [sd.pop(k) for k in [k for k in sd if k.endswith(VOCABULARY_KEYS)]]
    data = {
        "folders": list(folders),
        "with_t5": any(k.startswith("t5xxl.") for k in sd),
        "with_llama": any(k.startswith("llama.") for k in sd),
    }
    if embedded:
        data["spiece_model"] = embedded[0]
    return CLIP(
        target,
        embedding_directory=embedding_directory,
        tokenizer_data=data,
        state_dict=sd,
        model_options=model_options,
    )


def load_vae(vae_path: str) -> VAE:
    """An autoencoder from its file. Raises WeightsFileError or UnknownModelError."""
    sd, metadata = comfy.utils.load_torch_file(vae_path, return_metadata=True)
    with refusing(vae_path, UnknownModelError):
        vae = VAE(sd=sd, metadata=metadata)
    if vae.first_stage_model is None:
        raise UnknownModelError(vae_path, os.path.getsize(vae_path), _guess_what(sd, "VAE"))
    return vae


def load_gligen(ckpt_path: str) -> ModelPatcher:
    """See `comfy.gligen`."""
    from comfy.gligen import load_gligen

    return load_gligen(ckpt_path)


def save_checkpoint(
    output_path: str,
    model: ModelPatcher,
    clip: CLIP | None = None,
    vae: VAE | None = None,
    clip_vision: Any = None,
    metadata: dict[str, str] | None = None,
    extra_keys: Mapping[str, Tensor] | None = None,
) -> None:
    """Write model, text encoder and autoencoder, patches applied, as one checkpoint file."""
    sd = model.state_dict_for_saving(
        None if clip is None else clip.get_sd(),
        None if vae is None else vae.get_sd(),
        None if clip_vision is None else clip_vision.get_sd(),
    )
    sd.update(extra_keys or {})
    comfy.utils.save_torch_file(sd, output_path, metadata=metadata)


def _guess_what(sd: Mapping[str, Tensor], expected: str = "diffusion model") -> str:
    """Why tensors that are no known diffusion model (or text encoder) may have been taken for one."""
    keys = list(sd)
    if not keys:
        return "it holds no tensors"
    if (why := refusal(sd)) is not None:
        return why
    kinds = (
        ("a whole checkpoint", ("model.diffusion_model.",)),
        ("a LoRA", ("lora_", ".lora", "hada_", "lokr_")),
        ("a ControlNet", ("control_model.", "controlnet_", "zero_convs.", "input_hint_block")),
        ("a textual inversion", ("emb_params", "string_to_param")),
        ("a VAE", ("decoder.conv_in", "quant_conv")),
        ("a text encoder", ("text_model.", "encoder.block.", "model.layers.")),
    )
    for name, marks in kinds:
        if any(mark in key for key in keys for mark in marks):
            known = "of a kind not known here" if name == f"a {expected}" else f"not like a known {expected}"
            return f"it looks like {name}, {known} ({len(keys)} tensors, such as {keys[0]})"
    return f"no {expected} known here has its tensors ({len(keys)} of them, such as {keys[0]})"
