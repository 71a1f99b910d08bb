"""Core nodes that keep latents in files: safetensors with the tensor `latent_tensor` and the workflow as metadata."""

from __future__ import annotations

from typing import Any

import torch

import folder_paths

from .image_files import file_digest, is_readable_file
from .image_save import OutputFiles, metadata_texts

# Files without this key hold latents scaled the old way, for Stable Diffusion 1.
_VERSION_KEY = "latent_format_version_0"
_OLD_SCALE = 0.18215
_SUFFIX = ".latent"


class LatentFileError(ValueError):
    """A file is no latent file. The message names it."""


class SaveLatent:
    DESCRIPTION = "Writes latents into the output folder, with the workflow inside."
    DISPLAY_NAME = "Save Latent"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    RETURN_NAMES = ("samples",)
    FUNCTION = "save"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "samples": ("LATENT", {"tooltip": "Latents to write."}),
                "filename_prefix": (
                    "STRING",
                    {"default": "latents/ComfyUI", "tooltip": "Start of the file name, with sub-folders if wanted."},
                ),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def __init__(self) -> None:
        self.output_dir = folder_paths.get_output_directory()

    def save(
        self,
        samples: dict,
        filename_prefix: str = "ComfyUI",
        prompt: Any = None,
        extra_pnginfo: Any = None,
    ) -> dict:
        """Writes the samples only; masks and batch numbers are not kept."""
        import safetensors.torch

        tensors = {
            "latent_tensor": samples["samples"].detach().cpu().contiguous(),
            _VERSION_KEY: torch.tensor([]),
        }
        metadata = metadata_texts(prompt, extra_pnginfo) or None
        files = OutputFiles(filename_prefix, self.output_dir)
        name = files.write(safetensors.torch.save(tensors, metadata), _SUFFIX[1:])
        saved = {"filename": name, "subfolder": files.subfolder, "type": "output"}
        return {"ui": {"latents": [saved]}, "result": (samples,)}


class LoadLatent:
    DESCRIPTION = "Reads latents from a file in the input folder."
    DISPLAY_NAME = "Load Latent"
    CATEGORY = "model/latent"
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"latent": (_list_latent_files(), {"tooltip": "File in the input folder."})}}

    def load(self, latent: str) -> tuple[dict]:
        import safetensors
        import safetensors.torch

        path = folder_paths.get_annotated_filepath(latent)
        try:
            tensors = safetensors.torch.load_file(path, device="cpu")
        except safetensors.SafetensorError as error:
            raise LatentFileError(f"{latent}: not a latent file, or cut off ({error})") from error
        if "latent_tensor" not in tensors:
            raise LatentFileError(f"{latent}: holds {sorted(tensors)} but no latent_tensor")
        scale = 1.0 if _VERSION_KEY in tensors else 1.0 / _OLD_SCALE
        return ({"samples": tensors["latent_tensor"].float() * scale},)

    @classmethod
    def IS_CHANGED(cls, latent: str) -> str:
        return file_digest(folder_paths.get_annotated_filepath(latent))

    @classmethod
    def VALIDATE_INPUTS(cls, latent: str) -> bool | str:
        return True if is_readable_file(latent) else f"Invalid latent file: {latent}"


def _list_latent_files() -> list[str]:
    return folder_paths.get_top_files(folder_paths.get_input_directory(), _SUFFIX)


NODES = {
    "nodes": [SaveLatent, LoadLatent],
}
