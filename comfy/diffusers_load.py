"""A model kept as a folder in the layout of the diffusers library: one sub-folder per part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import comfy.sd
import comfy.utils
from comfy.weights import MissingWeightsError

NETWORK_FILES = (
    "diffusion_pytorch_model.fp16.safetensors",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.fp16.bin",
    "diffusion_pytorch_model.bin",
)
TEXT_FILES = ("model.fp16.safetensors", "model.safetensors", "pytorch_model.fp16.bin", "pytorch_model.bin")
# Transformers have a folder of another name than UNets.
NETWORK_FOLDERS = ("unet", "transformer")
TEXT_FOLDERS = ("text_encoder", "text_encoder_2")


def first_file(folder: str, names: Sequence[str]) -> str | None:
    """The first of the files that is there."""
    paths = (os.path.join(folder, name) for name in names)
    return next((path for path in paths if os.path.isfile(path)), None)


def load_diffusers(
    model_path: str,
    output_vae: bool = True,
    output_clip: bool = True,
    embedding_directory: str | Sequence[str] | None = None,
) -> tuple[Any, Any, Any]:
    """(model, clip, vae) of a folder; those not asked for are None. Raises MissingWeightsError naming the part that is
    not there, and the errors of single files."""
    network = next((p for f in NETWORK_FOLDERS if (p := _file(model_path, f, NETWORK_FILES))), None)
    if network is None:
        raise _missing(model_path, NETWORK_FOLDERS, NETWORK_FILES)
    model = comfy.sd.load_diffusion_model(network)
    clip = vae = None
    if output_clip:
        texts = [path for folder in TEXT_FOLDERS if (path := _file(model_path, folder, TEXT_FILES))]
        if not texts:
            raise _missing(model_path, TEXT_FOLDERS, TEXT_FILES)
        clip = comfy.sd.load_clip(texts, embedding_directory=embedding_directory)
    if output_vae:
        path = _file(model_path, "vae", NETWORK_FILES)
        if path is None:
            raise _missing(model_path, ("vae",), NETWORK_FILES)
        vae = comfy.sd.load_vae(path)
    return model, clip, vae


def _file(model_path: str, folder: str, names: Sequence[str]) -> str | None:
    return first_file(os.path.join(model_path, folder), names)


def _missing(model_path: str, folders: Sequence[str], names: Sequence[str]) -> MissingWeightsError:
    cause = f"no {' or '.join(folders)} folder with one of {', '.join(names)} is in it"
    return MissingWeightsError(model_path, None, cause)
