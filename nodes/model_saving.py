"""Nodes that write models, text encoders and VAEs, with all patches applied, as safetensors files."""

from __future__ import annotations

import os
from typing import Any

import folder_paths

from .image_save import metadata_texts

SUFFIX = "safetensors"
HIDDEN = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}


def _prefix_input(default: str) -> tuple:
    return ("STRING", {"default": default, "tooltip": "Start of the file name, with sub-folders if wanted."})


class WeightFiles:
    """Numbered files of one prefix in the output folder; a name is taken by creating the file."""

    def __init__(self, prefix: str, directory: str, prompt: Any = None, extra_pnginfo: Any = None):
        self.folder, self.base, self.counter, self.subfolder, _ = folder_paths.get_save_image_path(prefix, directory)
        self.metadata = metadata_texts(prompt, extra_pnginfo) or None

    def write(self, state_dict: dict) -> str:
        """Write one file and return its path. A failed write leaves no file behind."""
        import comfy.utils

        path = self._new_path()
        try:
            comfy.utils.save_torch_file(state_dict, path, metadata=self.metadata)
        except BaseException:
            os.unlink(path)
            raise
        return path

    def _new_path(self) -> str:
        while True:
            path = os.path.join(self.folder, f"{self.base}_{self.counter:05}_.{SUFFIX}")
            self.counter += 1
            try:
                with open(path, "xb"):
                    return path
            except FileExistsError:
                continue


class _Saver:
    """What the nodes of this module share."""

    CATEGORY = "model/merging"
    RETURN_TYPES = ()
    FUNCTION = "save"
    OUTPUT_NODE = True

    def __init__(self) -> None:
        self.output_dir = folder_paths.get_output_directory()


class CheckpointSave(_Saver):
    DESCRIPTION = "Writes model, text encoder and VAE as one checkpoint into the output folder."
    DISPLAY_NAME = "Save Checkpoint"
    SEARCH_ALIASES = ["save model", "export checkpoint", "merge save"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to write."}),
                "clip": ("CLIP", {"tooltip": "Text encoder to write."}),
                "vae": ("VAE", {"tooltip": "VAE to write."}),
                "filename_prefix": _prefix_input("checkpoints/ComfyUI"),
            },
            "hidden": HIDDEN,
        }

    def save(
        self, model: Any, clip: Any, vae: Any, filename_prefix: str, prompt: Any = None, extra_pnginfo: Any = None
    ) -> dict:
        files = WeightFiles(filename_prefix, self.output_dir, prompt, extra_pnginfo)
        files.write(model.state_dict_for_saving(clip.get_sd(), vae.get_sd()))
        return {}


class ModelSave(_Saver):
    DESCRIPTION = "Writes a diffusion model into the output folder."
    DISPLAY_NAME = "ModelSave"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to write."}),
                "filename_prefix": _prefix_input("diffusion_models/ComfyUI"),
            },
            "hidden": HIDDEN,
        }

    def save(self, model: Any, filename_prefix: str, prompt: Any = None, extra_pnginfo: Any = None) -> dict:
        files = WeightFiles(filename_prefix, self.output_dir, prompt, extra_pnginfo)
        files.write(model.state_dict_for_saving())
        return {}


class CLIPSave(_Saver):
    DESCRIPTION = "Writes a text side into the output folder, each of its encoders into a file of its own."
    DISPLAY_NAME = "CLIPSave"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip": ("CLIP", {"tooltip": "Text side to write."}),
                "filename_prefix": _prefix_input("clip/ComfyUI"),
            },
            "hidden": HIDDEN,
        }

    def save(self, clip: Any, filename_prefix: str, prompt: Any = None, extra_pnginfo: Any = None) -> dict:
        encoders: dict[str, dict] = {}
        for key, value in clip.get_sd().items():
            encoder, _, name = key.partition(".")
            encoders.setdefault(encoder, {})[name.removeprefix("transformer.")] = value
        for encoder, tensors in encoders.items():
            prefix = filename_prefix if len(encoders) == 1 else f"{filename_prefix}_{encoder}"
            WeightFiles(prefix, self.output_dir, prompt, extra_pnginfo).write(tensors)
        return {}


class VAESave(_Saver):
    DESCRIPTION = "Writes a VAE into the output folder."
    DISPLAY_NAME = "VAESave"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "vae": ("VAE", {"tooltip": "VAE to write."}),
                "filename_prefix": _prefix_input("vae/ComfyUI_vae"),
            },
            "hidden": HIDDEN,
        }

    def save(self, vae: Any, filename_prefix: str, prompt: Any = None, extra_pnginfo: Any = None) -> dict:
        WeightFiles(filename_prefix, self.output_dir, prompt, extra_pnginfo).write(vae.get_sd())
        return {}


NODES = {"comfy_extras.nodes_model_merging": [CheckpointSave, CLIPSave, VAESave, ModelSave]}
