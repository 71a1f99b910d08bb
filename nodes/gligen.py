"""Core nodes that place things in the picture by a text and a box each (GLIGEN)."""

from __future__ import annotations

from typing import Any

import folder_paths
from node_helpers import conditioning_set_values

from .conditioning import MissingClip
from .constants import MAX_RESOLUTION

PIXELS_PER_CELL = 8


class GLIGENLoader:
    DESCRIPTION = "Loads a GLIGEN model, which places things by boxes."
    DISPLAY_NAME = "Load GLIGEN Model"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("GLIGEN",)
    FUNCTION = "load_gligen"
    SEARCH_ALIASES = ["gligen"]

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"gligen_name": (folder_paths.get_filename_list("gligen"), {"tooltip": "File to load."})}}

    def load_gligen(self, gligen_name: str) -> tuple[Any]:
        from comfy.gligen import load_gligen

        return (load_gligen(folder_paths.get_full_path_or_raise("gligen", gligen_name)),)


class GLIGENTextBoxApply:
    DESCRIPTION = "Asks for what a text says inside a box. Several in a row add up."
    DISPLAY_NAME = "Apply GLIGEN Text Box"
    CATEGORY = "model/conditioning/gligen"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"
    SEARCH_ALIASES = ["gligen", "text box", "layout"]

    @classmethod
    def INPUT_TYPES(cls):
        size = {"default": 64, "min": 8, "max": MAX_RESOLUTION, "step": PIXELS_PER_CELL}
        place = {**size, "default": 0, "min": 0}
        return {
            "required": {
                "conditioning_to": ("CONDITIONING", {"tooltip": "Conditioning to extend."}),
                "clip": ("CLIP", {"tooltip": "Text encoder of the model."}),
                "gligen_textbox_model": ("GLIGEN", {"tooltip": "GLIGEN model for the UNet that is used."}),
                "text": (
                    "STRING",
                    {"multiline": True, "dynamicPrompts": True, "tooltip": "What is to be in the box."},
                ),
                "width": ("INT", {**size, "tooltip": "Width of the box in pixels."}),
                "height": ("INT", {**size, "tooltip": "Height of the box in pixels."}),
                "x": ("INT", {**place, "tooltip": "Left edge of the box in pixels."}),
                "y": ("INT", {**place, "tooltip": "Upper edge of the box in pixels."}),
            }
        }

    def append(
        self,
        conditioning_to: list,
        clip: Any,
        gligen_textbox_model: Any,
        text: str,
        width: int,
        height: int,
        x: int,
        y: int,
    ) -> tuple[list]:
        if clip is None:
            raise MissingClip()
        _, pooled = clip.encode_from_tokens(clip.tokenize(text), return_pooled="unprojected")
        box = (pooled, *(n // PIXELS_PER_CELL for n in (height, width, y, x)))
        out = []
        for entry in conditioning_to:
            before = entry[1]["gligen"][2] if "gligen" in entry[1] else []
            value = ("position", gligen_textbox_model, [*before, box])
            out += conditioning_set_values([entry], {"gligen": value})
        return (out,)


NODES = {"nodes": [GLIGENLoader, GLIGENTextBoxApply]}
