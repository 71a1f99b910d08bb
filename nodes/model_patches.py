"""Nodes that load small networks which patch a diffusion model, and put them in."""

from __future__ import annotations

from typing import Any

import folder_paths


class NotForThisModel(ValueError):
    """A model patch was applied to a model of another family."""


class ModelPatchLoader:
    DESCRIPTION = (
        "Loads a model patch: the block-wise controls of Qwen-Image (DiffSynth), or the style of USO for FLUX.1."
    )
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
        from comfy.models.blockwise_control import BlockwiseControl
        from comfy.models.qwen_image import QwenImage

        network = model.get_model_object("diffusion_model")
        if not isinstance(model_patch.model, BlockwiseControl):
            raise NotForThisModel(f"the model patch is no such control, it is a {type(model_patch.model).__name__}")
        if not isinstance(network, QwenImage):
            kind = type(network).__name__
            raise NotForThisModel(f"this control is for Qwen-Image, and the model is a {kind}")
        width = model_patch.model.img_in.out_features
        if width != network.config.width:
            raise NotForThisModel(f"the control is {width} wide, and the model {network.config.width}")
        if strength == 0:
            return (model,)
        return (apply_blockwise(model, model_patch, vae, image, strength, mask),)


class USOStyleReference:
    DESCRIPTION = "Gives FLUX.1 the style of pictures (USO, Wu et al., 2025)."
    DISPLAY_NAME = "Apply USO Style Reference"
    CATEGORY = "model/patch/flux"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "apply_patch"
    EXPERIMENTAL = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "FLUX.1."}),
                "model_patch": ("MODEL_PATCH", {"tooltip": "USO's projector."}),
                "clip_vision_output": ("CLIP_VISION_OUTPUT", {"tooltip": "Pictures of the style, seen by SigLIP."}),
            }
        }

    def apply_patch(self, model: Any, model_patch: Any, clip_vision_output: Any) -> tuple[Any]:
        from comfy.models.flux import Flux
        from comfy.models.style_projector import StyleProjector
        from comfy.style_patch import apply_style

        network, projector = model.get_model_object("diffusion_model"), model_patch.model
        if not isinstance(projector, StyleProjector):
            raise NotForThisModel(f"the model patch holds no style, it is a {type(projector).__name__}")
        if not isinstance(network, Flux):
            raise NotForThisModel(f"the style is for FLUX.1, and the model is a {type(network).__name__}")
        if projector.config.width != network.config.hidden_size:
            width = network.config.hidden_size
            raise NotForThisModel(f"the style is {projector.config.width} wide, and the model {width}")
        return (apply_style(model, model_patch, clip_vision_output),)


NODES = {"comfy_extras.nodes_model_patch": [ModelPatchLoader, QwenImageDiffsynthControlnet, USOStyleReference]}
