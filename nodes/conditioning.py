"""Core nodes for text and its conditioning.

CONDITIONING: list of [tensor [B,tokens,channels], options]. Nodes give new lists and new option dicts; tensors are
shared.
"""

from __future__ import annotations

from typing import Any

import torch

from node_helpers import conditioning_set_values

from .constants import MAX_RESOLUTION

PIXELS_PER_CELL = 8


class MissingClip(RuntimeError):
    """A CLIP input is empty, most often because the checkpoint has no text encoder."""

    def __init__(self) -> None:
        super().__init__(
            "clip is empty: the checkpoint it comes from probably holds no text encoder. "
            "Load one with a CLIP loader node."
        )


class CLIPTextEncode:
    DESCRIPTION = "Turns a text into conditioning that guides a model towards what the text says."
    DISPLAY_NAME = "CLIP Text Encode (Prompt)"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "encode"
    SEARCH_ALIASES = ["prompt", "text", "positive", "negative"]
    OUTPUT_TOOLTIPS = ("The encoded text.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "text": ("STRING", {"multiline": True, "dynamicPrompts": True, "tooltip": "Text to encode."}),
                "clip": ("CLIP", {"tooltip": "CLIP model that encodes it."}),
            }
        }

    def encode(self, clip: Any, text: str) -> tuple[list]:
        if clip is None:
            raise MissingClip()
        return (clip.encode_from_tokens_scheduled(clip.tokenize(text)),)


class CLIPSetLastLayer:
    DESCRIPTION = 'Stops the text encoder some layers early ("CLIP skip").'
    DISPLAY_NAME = "CLIP Set Last Layer"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "set_last_layer"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip": ("CLIP", {"tooltip": "CLIP model."}),
                "stop_at_clip_layer": (
                    "INT",
                    {
                        "default": -1,
                        "min": -24,
                        "max": -1,
                        "step": 1,
                        "advanced": True,
                        "tooltip": "Last layer to use, counted from the end.",
                    },
                ),
            }
        }

    def set_last_layer(self, clip: Any, stop_at_clip_layer: int) -> tuple[Any]:
        if clip is None:
            raise MissingClip()
        clip = clip.clone()
        clip.clip_layer(stop_at_clip_layer)
        return (clip,)


class ConditioningCombine:
    DESCRIPTION = "Uses both conditionings: the model's predictions for them are averaged."
    DISPLAY_NAME = "Conditioning (Combine)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "combine"
    ESSENTIALS_CATEGORY = "Image Generation"
    SEARCH_ALIASES = ["merge", "join prompts"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning_1": ("CONDITIONING", {"tooltip": "First conditioning."}),
                "conditioning_2": ("CONDITIONING", {"tooltip": "Second conditioning."}),
            }
        }

    def combine(self, conditioning_1: list, conditioning_2: list) -> tuple[list]:
        return (conditioning_1 + conditioning_2,)


class ConditioningAverage:
    DESCRIPTION = "Mixes the tensors of two conditionings."
    DISPLAY_NAME = "Conditioning (Average)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "addWeighted"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning_to": ("CONDITIONING", {"tooltip": "First conditioning."}),
                "conditioning_from": (
                    "CONDITIONING",
                    {"tooltip": "Second conditioning; only its first entry is used."},
                ),
                "conditioning_to_strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.01,
                        "tooltip": "Share of the first: 1 keeps it, 0 gives the second.",
                    },
                ),
            }
        }

    def addWeighted(
        self, conditioning_to: list, conditioning_from: list, conditioning_to_strength: float
    ) -> tuple[list]:
        other, other_options = conditioning_from[0][:2]
        other_pooled = other_options.get("pooled_output")
        share = conditioning_to_strength
        result = []
        for tensor, options, *_ in conditioning_to:
            mixed = tensor * share + _with_length(other, tensor.shape[1]) * (1.0 - share)
            options = dict(options)
            pooled = options.get("pooled_output")
            if pooled is not None and other_pooled is not None:
                options["pooled_output"] = pooled * share + other_pooled * (1.0 - share)
            elif other_pooled is not None:
                options["pooled_output"] = other_pooled
            result.append([mixed, options])
        return (result,)


def _with_length(tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """Cut or zero-pad [B,T,C] to the given number of tokens."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, tokens - tensor.shape[1]))


class ConditioningConcat:
    DESCRIPTION = "Appends the tokens of one conditioning to another."
    DISPLAY_NAME = "Conditioning (Concat)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "concat"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning_to": ("CONDITIONING", {"tooltip": "Conditioning to extend."}),
                "conditioning_from": (
                    "CONDITIONING",
                    {"tooltip": "Conditioning to append; only its first entry is used."},
                ),
            }
        }

    def concat(self, conditioning_to: list, conditioning_from: list) -> tuple[list]:
        tail = conditioning_from[0][0]
        return ([[torch.cat((tensor, tail), dim=1), dict(options)] for tensor, options, *_ in conditioning_to],)


class ConditioningMultiply:
    DESCRIPTION = "Multiplies the tensors of a conditioning by a number."
    DISPLAY_NAME = "Conditioning (Multiply)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "multiply"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to scale."}),
                "multiplier": (
                    "FLOAT",
                    {"default": 1.0, "min": -100.0, "max": 100.0, "step": 0.01, "tooltip": "Factor."},
                ),
            }
        }

    def multiply(self, conditioning: list, multiplier: float) -> tuple[list]:
        result = []
        for tensor, options, *_ in conditioning:
            options = dict(options)
            if options.get("pooled_output") is not None:
                options["pooled_output"] = options["pooled_output"] * multiplier
            result.append([tensor * multiplier, options])
        return (result,)


class ConditioningSetArea:
    DESCRIPTION = "Lets a conditioning act on a rectangle of the picture only."
    DISPLAY_NAME = "Conditioning (Set Area)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to limit."}),
                "width": (
                    "INT",
                    {"default": 64, "min": 64, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Width in pixels."},
                ),
                "height": (
                    "INT",
                    {"default": 64, "min": 64, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Height in pixels."},
                ),
                "x": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Left edge in pixels."},
                ),
                "y": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Top edge in pixels."},
                ),
                "strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 10.0,
                        "step": 0.01,
                        "tooltip": "Weight against other conditionings that act there.",
                    },
                ),
            }
        }

    def append(self, conditioning: list, width: int, height: int, x: int, y: int, strength: float) -> tuple[list]:
        area = tuple(side // PIXELS_PER_CELL for side in (height, width, y, x))
        return (_set_area(conditioning, area, strength),)


def _set_area(conditioning: list, area: tuple, strength: float) -> list:
    values = {"area": area, "strength": strength, "set_area_to_bounds": False}
    return conditioning_set_values(conditioning, values)


class ConditioningSetAreaPercentage:
    DESCRIPTION = "Lets a conditioning act on a rectangle, given as parts of the picture."
    DISPLAY_NAME = "Conditioning (Set Area with Percentage)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to limit."}),
                "width": (
                    "FLOAT",
                    {"default": 1.0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Width; 1 is the whole picture."},
                ),
                "height": (
                    "FLOAT",
                    {"default": 1.0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Height; 1 is the whole picture."},
                ),
                "x": (
                    "FLOAT",
                    {"default": 0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Left edge; 0 is the left side."},
                ),
                "y": (
                    "FLOAT",
                    {"default": 0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Top edge; 0 is the top."},
                ),
                "strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 10.0,
                        "step": 0.01,
                        "tooltip": "Weight against other conditionings that act there.",
                    },
                ),
            }
        }

    def append(
        self, conditioning: list, width: float, height: float, x: float, y: float, strength: float
    ) -> tuple[list]:
        return (_set_area(conditioning, ("percentage", height, width, y, x), strength),)


class ConditioningSetAreaStrength:
    DESCRIPTION = "Changes the weight of a conditioning against others."
    DISPLAY_NAME = "Conditioning (Set Area Strength)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to weigh."}),
                "strength": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.01, "tooltip": "Weight."}),
            }
        }

    def append(self, conditioning: list, strength: float) -> tuple[list]:
        return (conditioning_set_values(conditioning, {"strength": strength}),)


class ConditioningSetMask:
    DESCRIPTION = "Lets a conditioning act where a mask is set."
    DISPLAY_NAME = "Conditioning (Set Mask)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to limit."}),
                "mask": ("MASK", {"tooltip": "1 where it acts."}),
                "strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 10.0,
                        "step": 0.01,
                        "tooltip": "Weight against other conditionings.",
                    },
                ),
                "set_cond_area": (
                    ["default", "mask bounds"],
                    {"tooltip": "Whether the model sees the whole picture, or only the box around the mask."},
                ),
            }
        }

    def append(self, conditioning: list, mask: torch.Tensor, set_cond_area: str, strength: float) -> tuple[list]:
        values = {
            "mask": mask[None] if mask.ndim < 3 else mask,
            "set_area_to_bounds": set_cond_area != "default",
            "mask_strength": strength,
        }
        return (conditioning_set_values(conditioning, values),)


class ConditioningZeroOut:
    DESCRIPTION = "Replaces a conditioning by zeros of the same shape."
    DISPLAY_NAME = "Conditioning Zero Out"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "zero_out"
    SEARCH_ALIASES = ["empty", "null prompt"]

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"conditioning": ("CONDITIONING", {"tooltip": "Conditioning to empty."})}}

    def zero_out(self, conditioning: list) -> tuple[list]:
        result = []
        for tensor, options, *_ in conditioning:
            options = dict(options)
            for key in ("pooled_output", "conditioning_lyrics", "conditioning_scale"):
                if isinstance(options.get(key), torch.Tensor):
                    options[key] = torch.zeros_like(options[key])
            result.append([torch.zeros_like(tensor), options])
        return (result,)


class ConditioningSetTimestepRange:
    DESCRIPTION = "Lets a conditioning act during a part of sampling only."
    DISPLAY_NAME = "ConditioningSetTimestepRange"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "set_range"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to limit."}),
                "start": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.001,
                        "tooltip": "Where it begins; 0 is the first step.",
                    },
                ),
                "end": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.001,
                        "tooltip": "Where it ends; 1 is the last step.",
                    },
                ),
            }
        }

    def set_range(self, conditioning: list, start: float, end: float) -> tuple[list]:
        values = {"start_percent": start, "end_percent": end}
        return (conditioning_set_values(conditioning, values),)


class unCLIPConditioning:
    DESCRIPTION = "Adds a picture, as seen by CLIP vision, to the conditioning of an unCLIP model."
    DISPLAY_NAME = "unCLIPConditioning"
    CATEGORY = "model/conditioning"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "apply_adm"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to extend."}),
                "clip_vision_output": ("CLIP_VISION_OUTPUT", {"tooltip": "The encoded picture."}),
                "strength": (
                    "FLOAT",
                    {"default": 1.0, "min": -10.0, "max": 10.0, "step": 0.01, "tooltip": "Weight of the picture."},
                ),
                "noise_augmentation": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.01,
                        "tooltip": "How loosely the picture is followed: 0 closely, 1 hardly.",
                    },
                ),
            }
        }

    def apply_adm(
        self, conditioning: list, clip_vision_output: Any, strength: float, noise_augmentation: float
    ) -> tuple[list]:
        if strength == 0:
            return (conditioning,)
        picture = {
            "clip_vision_output": clip_vision_output,
            "strength": strength,
            "noise_augmentation": noise_augmentation,
        }
        return (conditioning_set_values(conditioning, {"unclip_conditioning": [picture]}, append=True),)


NODES = {
    "nodes": [
        CLIPTextEncode,
        CLIPSetLastLayer,
        ConditioningCombine,
        ConditioningAverage,
        ConditioningConcat,
        ConditioningMultiply,
        ConditioningSetArea,
        ConditioningSetAreaPercentage,
        ConditioningSetAreaStrength,
        ConditioningSetMask,
        ConditioningZeroOut,
        ConditioningSetTimestepRange,
        unCLIPConditioning,
    ],
}
