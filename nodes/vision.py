"""Core nodes for image encoders and what they serve: unCLIP checkpoints and style models."""

from __future__ import annotations

import math
from typing import Any

import torch

import folder_paths


class MissingImageEncoder(RuntimeError):
    """A CLIP_VISION input is empty, most often because the checkpoint has no image encoder."""

    def __init__(self) -> None:
        super().__init__(
            "clip_vision is empty: the checkpoint it comes from probably holds no image encoder. "
            "Load one with a CLIP vision loader node."
        )


class UnsuitableStyle(ValueError):
    """A style model's tokens do not go with the conditioning."""


class CLIPVisionLoader:
    DESCRIPTION = "Loads an image encoder: CLIP vision, or SigLIP."
    DISPLAY_NAME = "Load CLIP Vision"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("CLIP_VISION",)
    FUNCTION = "load_clip"

    @classmethod
    def INPUT_TYPES(cls):
        names = folder_paths.get_filename_list("clip_vision")
        return {"required": {"clip_name": (names, {"tooltip": "File to load."})}}

    def load_clip(self, clip_name: str) -> tuple[Any]:
        import comfy.clip_vision

        return (comfy.clip_vision.load(folder_paths.get_full_path_or_raise("clip_vision", clip_name)),)


class CLIPVisionEncode:
    DESCRIPTION = "Turns pictures into what an image encoder sees in them."
    DISPLAY_NAME = "CLIP Vision Encode"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CLIP_VISION_OUTPUT",)
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip_vision": ("CLIP_VISION", {"tooltip": "Image encoder."}),
                "image": ("IMAGE", {"tooltip": "Pictures to encode."}),
                "crop": (
                    ["center", "none"],
                    {"tooltip": "How they become square: cut around the middle, or squeezed."},
                ),
            }
        }

    def encode(self, clip_vision: Any, image: torch.Tensor, crop: str) -> tuple[Any]:
        if clip_vision is None:
            raise MissingImageEncoder()
        return (clip_vision.encode_image(image, crop=crop == "center"),)


class unCLIPCheckpointLoader:
    DESCRIPTION = "Loads an unCLIP checkpoint: the model, its text encoder, its VAE and its image encoder."
    DISPLAY_NAME = "Load unCLIP Checkpoint"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL", "CLIP", "VAE", "CLIP_VISION")
    FUNCTION = "load_checkpoint"

    @classmethod
    def INPUT_TYPES(cls):
        names = folder_paths.get_filename_list("checkpoints")
        return {"required": {"ckpt_name": (names, {"tooltip": "File to load."})}}

    def load_checkpoint(self, ckpt_name: str) -> tuple[Any, Any, Any, Any]:
        import comfy.sd

        return comfy.sd.load_checkpoint_guess_config(
            folder_paths.get_full_path_or_raise("checkpoints", ckpt_name),
            output_vae=True,
            output_clip=True,
            output_clipvision=True,
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
        )


class StyleModelLoader:
    DESCRIPTION = "Loads a style model, such as FLUX.1 Redux."
    DISPLAY_NAME = "Load Style Model"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("STYLE_MODEL",)
    FUNCTION = "load_style_model"

    @classmethod
    def INPUT_TYPES(cls):
        names = folder_paths.get_filename_list("style_models")
        return {"required": {"style_model_name": (names, {"tooltip": "File to load."})}}

    def load_style_model(self, style_model_name: str) -> tuple[Any]:
        import comfy.sd

        path = folder_paths.get_full_path_or_raise("style_models", style_model_name)
        return (comfy.sd.load_style_model(path),)


class StyleModelApply:
    DESCRIPTION = "Puts what a style model makes of a picture behind the text."
    DISPLAY_NAME = "Apply Style Model"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "apply_stylemodel"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to extend."}),
                "style_model": ("STYLE_MODEL", {"tooltip": "Style model."}),
                "clip_vision_output": ("CLIP_VISION_OUTPUT", {"tooltip": "The encoded picture."}),
                "strength": (
                    "FLOAT",
                    {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.001, "tooltip": "Weight of the picture."},
                ),
                "strength_type": (
                    ["multiply", "attn_bias"],
                    {"tooltip": "What is weighted: the tokens themselves, or how much they are looked at."},
                ),
            }
        }

    def apply_stylemodel(
        self, conditioning: list, style_model: Any, clip_vision_output: Any, strength: float, strength_type: str
    ) -> tuple[list]:
        style = style_model.get_cond(clip_vision_output).flatten(0, 1).unsqueeze(0)
        weigh_attention = strength_type == "attn_bias"
        if not weigh_attention:
            style = style * strength
        # The logarithm, since scores are added before the softmax; nothing is looked at with weight 0.
        bias = math.log(strength) if strength > 0 else -torch.finfo(torch.float32).max / 2
        result = []
        for tokens, options in conditioning:
            if style.shape[-1] != tokens.shape[-1]:
                raise UnsuitableStyle(
                    f"the style model makes tokens {style.shape[-1]} wide, the conditioning's are {tokens.shape[-1]}: "
                    "they belong to different models"
                )
            options = options.copy()
            earlier = options.get("style_attention_bias")
            if weigh_attention or earlier is not None:
                earlier = tokens.new_zeros(1, tokens.shape[1]) if earlier is None else earlier
                added = torch.full((1, style.shape[1]), bias if weigh_attention else 0.0).to(earlier)
                options["style_attention_bias"] = torch.cat([earlier, added], dim=1)
            repeated = style.to(tokens).expand(tokens.shape[0], -1, -1)
            result.append([torch.cat([tokens, repeated], dim=1), options])
        return (result,)


NODES = {
    "nodes": [CLIPVisionLoader, CLIPVisionEncode, unCLIPCheckpointLoader, StyleModelLoader, StyleModelApply],
}
