"""Nodes that load small networks which patch a diffusion model, and put them in."""

from __future__ import annotations

from typing import Any

import folder_paths


class NotForThisModel(ValueError):
    """A model patch was applied to a model of another family."""


class ModelPatchLoader:
    DESCRIPTION = "Loads a model patch: so far the block-wise controls of Qwen-Image (DiffSynth)."
    DISPLAY_NAME = "Load Model Patch"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL_PATCH",)
    FUNCTION = "load_model_patch"
    EXPERIMENTAL = True

    @classmethod
    def INPUT_TYPES(cls):
        names = folder_paths.get_filename_list("model_patches")
        return {"required": {"name": (names, {"tooltip": "File to load."})}}

    def load_model_patch(self, name: str) -> tuple[Any]:
        from comfy.model_patches import load_model_patch

        return (load_model_patch(folder_paths.get_full_path_or_raise("model_patches", name)),)


class QwenImageDiffsynthControlnet:
    DESCRIPTION = "Lets a block-wise control steer Qwen-Image by a picture."
    DISPLAY_NAME = "Apply Qwen Image DiffSynth ControlNet"
    CATEGORY = "model/patch/qwen"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "diffsynth_controlnet"
    EXPERIMENTAL = True

    @classmethod
    def INPUT_TYPES(cls):
        strength = {"default": 1.0, "min": -10.0, "max": 10.0, "step": 0.01, "tooltip": "How much the control adds."}
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Qwen-Image."}),
                "model_patch": ("MODEL_PATCH", {"tooltip": "The control."}),
                "vae": ("VAE", {"tooltip": "VAE of the model."}),
                "image": ("IMAGE", {"tooltip": "Picture, already prepared for the kind of control."}),
                "strength": ("FLOAT", strength),
            },
            "optional": {"mask": ("MASK", {"tooltip": "1 where the picture is to be made anew; for inpainting."})},
        }

    def diffsynth_controlnet(
        self, model: Any, model_patch: Any, vae: Any, image: Any, strength: float, mask: Any = None
    ) -> tuple[Any]:
        from comfy.model_patches import apply_blockwise
        from comfy.models.qwen_image import QwenImage

        network = model.get_model_object("diffusion_model")
        if not isinstance(network, QwenImage):
            kind = type(network).__name__
            raise NotForThisModel(f"this control is for Qwen-Image, and the model is a {kind}")
        width = model_patch.model.img_in.out_features
        if width != network.config.width:
            raise NotForThisModel(f"the control is {width} wide, and the model {network.config.width}")
        if strength == 0:
            return (model,)
        return (apply_blockwise(model, model_patch, vae, image, strength, mask),)


NODES = {"comfy_extras.nodes_model_patch": [ModelPatchLoader, QwenImageDiffsynthControlnet]}
