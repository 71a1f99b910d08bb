"""Core nodes that load model files. Broken files raise the loader's own errors, which name the file and the cause."""

from __future__ import annotations

import os
from typing import Any

import folder_paths


class MissingVaePart(FileNotFoundError):
    """A small preview VAE lacks its encoder or decoder file."""


class CheckpointLoaderSimple:
    DESCRIPTION = "Loads a checkpoint file: the model, its text encoder and its VAE."
    DISPLAY_NAME = "Load Checkpoint"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load_checkpoint"
    SEARCH_ALIASES = ["load model", "checkpoint", "ckpt"]
    OUTPUT_TOOLTIPS = (
        "The model that denoises latents.",
        "The text encoder.",
        "The VAE, between pictures and latents.",
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"ckpt_name": (folder_paths.get_filename_list("checkpoints"), {"tooltip": "File to load."})}
        }

    def load_checkpoint(self, ckpt_name: str) -> tuple[Any, Any, Any]:
        import comfy.sd

        path = folder_paths.get_full_path_or_raise("checkpoints", ckpt_name)
        return comfy.sd.load_checkpoint_guess_config(
            path,
            output_vae=True,
            output_clip=True,
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
        )[:3]


# Small autoencoders for previews: one plain name stands for an encoder and a decoder file.
_TWO_PART_VAES = ("taesd", "taesdxl", "taesd3", "taef1")
_ONE_FILE_PREVIEW_VAES = ("taehv", "lighttaew2_1", "taeltx_2")
# No file: pixels are used as they are.
PIXEL_SPACE = "pixel_space"


class VAELoader:
    DESCRIPTION = "Loads a VAE file."
    DISPLAY_NAME = "Load VAE"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("VAE",)
    FUNCTION = "load_vae"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "vae_name": (cls.vae_list(cls), {"tooltip": "File to load; pixel_space works on plain pixels."})
            }
        }

    @staticmethod
    def vae_list(s: Any) -> list[str]:
        """Names of VAE files, of the complete small ones in vae_approx, and pixel_space."""
        small = folder_paths.get_filename_list("vae_approx")
        names = list(folder_paths.get_filename_list("vae"))
        for name in _TWO_PART_VAES:
            if all(any(file.startswith(f"{name}_{part}.") for file in small) for part in ("encoder", "decoder")):
                names.append(name)
        names += [file for file in small if os.path.splitext(file)[0] in _ONE_FILE_PREVIEW_VAES]
        return [*names, PIXEL_SPACE]

    def load_vae(self, vae_name: str) -> tuple[Any]:
        import comfy.sd
        from comfy.weights import refusing

        if vae_name == PIXEL_SPACE or vae_name in _TWO_PART_VAES:
            with refusing(vae_name, comfy.sd.UnknownModelError):
                return (comfy.sd.VAE(sd=_vae_weights(vae_name)),)
        small = os.path.splitext(vae_name)[0] in _ONE_FILE_PREVIEW_VAES
        return (comfy.sd.load_vae(folder_paths.get_full_path_or_raise("vae_approx" if small else "vae", vae_name)),)


def _vae_weights(name: str) -> dict:
    import torch

    return {"pixel_space_vae": torch.tensor(1.0)} if name == PIXEL_SPACE else _two_part_weights(name)


def _two_part_weights(name: str) -> dict:
    import torch

    import comfy.utils

    weights = {}
    for part in ("encoder", "decoder"):
        files = [f for f in folder_paths.get_filename_list("vae_approx") if f.startswith(f"{name}_{part}.")]
        if not files:
            raise MissingVaePart(f"vae_approx holds no {name}_{part} file, which the VAE {name!r} needs")
        path = folder_paths.get_full_path_or_raise("vae_approx", files[0])
        weights.update((f"taesd_{part}.{key}", value) for key, value in comfy.utils.load_torch_file(path).items())
    scale, shift = _LATENT_SCALES[name]
    weights["vae_scale"], weights["vae_shift"] = torch.tensor(scale), torch.tensor(shift)
    return weights


# Scale and shift between the latents of the model family and those of its small VAE.
_LATENT_SCALES = {
    "taesd": (0.18215, 0.0),
    "taesdxl": (0.13025, 0.0),
    "taesd3": (1.5305, 0.0609),
    "taef1": (0.3611, 0.1159),
}


class UNETLoader:
    DESCRIPTION = "Loads a diffusion model from a file of its own."
    DISPLAY_NAME = "Load Diffusion Model"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load_unet"
    SEARCH_ALIASES = ["diffusion model", "transformer", "unet"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "unet_name": (folder_paths.get_filename_list("diffusion_models"), {"tooltip": "File to load."}),
                "weight_dtype": (
                    ["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"],
                    {
                        "advanced": True,
                        "tooltip": "How weights are kept; fp8 halves the memory and costs some quality.",
                    },
                ),
            }
        }

    def load_unet(self, unet_name: str, weight_dtype: str) -> tuple[Any]:
        import torch

        import comfy.sd

        options: dict[str, Any] = {}
        if weight_dtype in ("fp8_e4m3fn", "fp8_e4m3fn_fast"):
            options["dtype"] = torch.float8_e4m3fn
        elif weight_dtype == "fp8_e5m2":
            options["dtype"] = torch.float8_e5m2
        if weight_dtype == "fp8_e4m3fn_fast":
            options["fp8_optimizations"] = True
        path = folder_paths.get_full_path_or_raise("diffusion_models", unet_name)
        return (comfy.sd.load_diffusion_model(path, model_options=options),)


def _load_text_encoders(names: list[str], kind: str, device: str) -> Any:
    """CLIP from text encoder files. Raises comfy.weights' errors for files that do not fit `kind`."""
    import torch

    import comfy.sd

    options = {}
    if device == "cpu":
        options = {"load_device": torch.device("cpu"), "offload_device": torch.device("cpu")}
    return comfy.sd.load_clip(
        [folder_paths.get_full_path_or_raise("text_encoders", name) for name in names],
        embedding_directory=folder_paths.get_folder_paths("embeddings"),
        clip_type=comfy.sd.CLIPType[kind.upper()],
        model_options=options,
    )


class CLIPLoader:
    DESCRIPTION = "Loads a text encoder."
    DISPLAY_NAME = "Load CLIP"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "load_clip"
    SEARCH_ALIASES = ["text encoder", "t5", "qwen"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip_name": (folder_paths.get_filename_list("text_encoders"), {"tooltip": "File to load."}),
                "type": (
                    [
                        "stable_diffusion",
                        "stable_cascade",
                        "sd3",
                        "stable_audio",
                        "mochi",
                        "ltxv",
                        "pixart",
                        "cosmos",
                        "lumina2",
                        "wan",
                        "hidream",
                        "chroma",
                        "ace",
                        "omnigen2",
                        "qwen_image",
                        "hunyuan_image",
                        "flux2",
                        "ovis",
                        "longcat_image",
                        "cogvideox",
                        "lens",
                        "pixeldit",
                        "ideogram4",
                        "boogu",
                        "krea2",
                        "joyimage",
                        "mage",
                        "minimax",
                    ],
                    {"tooltip": "Family of models it is used for."},
                ),
            },
            "optional": {"device": (["default", "cpu"], {"advanced": True, "tooltip": "Where it runs."})},
        }

    def load_clip(self, clip_name: str, type: str = "stable_diffusion", device: str = "default") -> tuple[Any]:
        return (_load_text_encoders([clip_name], type, device),)


class DualCLIPLoader:
    DESCRIPTION = "Loads two text encoders that work together."
    DISPLAY_NAME = "Load CLIP (Dual)"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "load_clip"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip_name1": (folder_paths.get_filename_list("text_encoders"), {"tooltip": "First file to load."}),
                "clip_name2": (folder_paths.get_filename_list("text_encoders"), {"tooltip": "Second file to load."}),
                "type": (
                    [
                        "sdxl",
                        "sd3",
                        "flux",
                        "hunyuan_video",
                        "hidream",
                        "hunyuan_image",
                        "hunyuan_video_15",
                        "kandinsky5",
                        "kandinsky5_image",
                        "ltxv",
                        "newbie",
                        "ace",
                    ],
                    {"tooltip": "Family of models they are used for."},
                ),
            },
            "optional": {"device": (["default", "cpu"], {"advanced": True, "tooltip": "Where they run."})},
        }

    def load_clip(self, clip_name1: str, clip_name2: str, type: str, device: str = "default") -> tuple[Any]:
        # SDXL's encoders are those of its checkpoint, which has no type of its own.
        kind = "stable_diffusion" if type == "sdxl" else type
        return (_load_text_encoders([clip_name1, clip_name2], kind, device),)


class CheckpointLoader:
    DESCRIPTION = "Loads a checkpoint with a configuration file. Load Checkpoint needs none."
    DISPLAY_NAME = "Load Checkpoint With Config (DEPRECATED)"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load_checkpoint"
    DEPRECATED = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "config_name": (
                    folder_paths.get_filename_list("configs"),
                    {"tooltip": "Says what the network predicts, and which layer of the text encoder is used."},
                ),
                "ckpt_name": (folder_paths.get_filename_list("checkpoints"), {"tooltip": "File to load."}),
            }
        }

    def load_checkpoint(self, config_name: str, ckpt_name: str) -> tuple[Any, Any, Any]:
        import comfy.sd

        return comfy.sd.load_checkpoint(
            folder_paths.get_full_path_or_raise("configs", config_name),
            folder_paths.get_full_path_or_raise("checkpoints", ckpt_name),
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
        )


class DiffusersLoader:
    DESCRIPTION = "Loads a model from a folder in the layout of the diffusers library."
    DISPLAY_NAME = "Load Diffusers Model (DEPRECATED)"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load_checkpoint"
    DEPRECATED = True
    INDEX_FILE = "model_index.json"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model_path": (cls._folders(), {"tooltip": "Folder to load."})}}

    @classmethod
    def _folders(cls) -> list[str]:
        """Folders with an index below the `diffusers` folders, relative to these."""
        found = []
        for root in folder_paths.get_folder_paths("diffusers"):
            for path, _, files in os.walk(root, followlinks=True):
                if cls.INDEX_FILE in files:
                    found.append(os.path.relpath(path, root))
        return sorted(dict.fromkeys(found))

    def load_checkpoint(self, model_path: str) -> tuple[Any, Any, Any]:
        from comfy.diffusers_load import load_diffusers

        return load_diffusers(
            self._full_path(model_path), embedding_directory=folder_paths.get_folder_paths("embeddings")
        )

    def _full_path(self, name: str) -> str:
        if name in self._folders():
            for root in folder_paths.get_folder_paths("diffusers"):
                path = os.path.join(root, name)
                if os.path.isfile(os.path.join(path, self.INDEX_FILE)):
                    return path
        raise FileNotFoundError(f"no folder {name!r} with a {self.INDEX_FILE} is below models/diffusers")


NODES = {
    "nodes": [
        CheckpointLoaderSimple,
        CheckpointLoader,
        VAELoader,
        UNETLoader,
        CLIPLoader,
        DualCLIPLoader,
        DiffusersLoader,
    ],
}
