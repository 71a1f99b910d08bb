"""Nodes that put hooks, masks and ranges on conditionings, one or a pair (positive, negative) at a time."""

from __future__ import annotations

from typing import Any

import comfy.hooks

Range = tuple[float, float]


def _conditioning(tooltip: str) -> tuple:
    return ("CONDITIONING", {"tooltip": tooltip})


OLD, NEW = _conditioning("Conditioning to add to."), _conditioning("Conditioning to change.")
HOOKS = ("HOOKS", {"tooltip": "Changes to the model that act for this conditioning only."})
PROPERTIES = {
    "strength": (
        "FLOAT",
        {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.01, "tooltip": "Weight of the mask; unused without one."},
    ),
    "set_cond_area": (
        ["default", "mask bounds"],
        {"tooltip": "Whether the model sees the whole picture, or only the box around the mask."},
    ),
}
OPTIONAL = {
    "mask": ("MASK", {"tooltip": "1 where it acts."}),
    "hooks": HOOKS,
    "timesteps": ("TIMESTEPS_RANGE", {"tooltip": "When it acts."}),
}


class _Single:
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/cond single"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "set_properties"


class _Pair:
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/cond pair"
    RETURN_TYPES = ("CONDITIONING", "CONDITIONING")
    RETURN_NAMES = ("positive", "negative")
    FUNCTION = "set_properties"


class ConditioningSetProperties(_Single):
    DESCRIPTION = "Sets where and when a conditioning acts, and which hooks act for it."
    DISPLAY_NAME = "Cond Set Props"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"cond_NEW": NEW, **PROPERTIES}, "optional": OPTIONAL}

    def set_properties(
        self,
        cond_NEW: list,
        strength: float,
        set_cond_area: str,
        mask: Any = None,
        hooks: Any = None,
        timesteps: Range | None = None,
    ) -> tuple[list]:
        return tuple(comfy.hooks.set_conds_props([cond_NEW], strength, set_cond_area, mask, hooks, timesteps))


class ConditioningSetPropertiesAndCombine(_Single):
    DESCRIPTION = "As Cond Set Props, beside another conditioning."
    DISPLAY_NAME = "Cond Set Props Combine"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"cond": OLD, "cond_NEW": NEW, **PROPERTIES}, "optional": OPTIONAL}

    def set_properties(
        self,
        cond: list,
        cond_NEW: list,
        strength: float,
        set_cond_area: str,
        mask: Any = None,
        hooks: Any = None,
        timesteps: Range | None = None,
    ) -> tuple[list]:
        return tuple(
            comfy.hooks.set_conds_props_and_combine([cond], [cond_NEW], strength, set_cond_area, mask, hooks, timesteps)
        )


class ConditioningSetDefaultCombine(_Single):
    DESCRIPTION = "Adds a conditioning that acts wherever the others leave room."
    DISPLAY_NAME = "Cond Set Default Combine"
    FUNCTION = "set_default_and_combine"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"cond": OLD, "cond_DEFAULT": _conditioning("Conditioning that fills the rest.")},
            "optional": {"hooks": HOOKS},
        }

    def set_default_and_combine(self, cond: list, cond_DEFAULT: list, hooks: Any = None) -> tuple[list]:
        return tuple(comfy.hooks.set_default_conds_and_combine([cond], [cond_DEFAULT], hooks))


class PairConditioningSetProperties(_Pair):
    DESCRIPTION = "Sets where and when a pair of conditionings acts, and which hooks act for it."
    DISPLAY_NAME = "Cond Pair Set Props"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"positive_NEW": NEW, "negative_NEW": NEW, **PROPERTIES}, "optional": OPTIONAL}

    def set_properties(
        self,
        positive_NEW: list,
        negative_NEW: list,
        strength: float,
        set_cond_area: str,
        mask: Any = None,
        hooks: Any = None,
        timesteps: Range | None = None,
    ) -> tuple[list, list]:
        new = [positive_NEW, negative_NEW]
        return tuple(comfy.hooks.set_conds_props(new, strength, set_cond_area, mask, hooks, timesteps))


class PairConditioningSetPropertiesAndCombine(_Pair):
    DESCRIPTION = "As Cond Pair Set Props, beside another pair."
    DISPLAY_NAME = "Cond Pair Set Props Combine"

    @classmethod
    def INPUT_TYPES(cls):
        pairs = {"positive": OLD, "negative": OLD, "positive_NEW": NEW, "negative_NEW": NEW}
        return {"required": {**pairs, **PROPERTIES}, "optional": OPTIONAL}

    def set_properties(
        self,
        positive: list,
        negative: list,
        positive_NEW: list,
        negative_NEW: list,
        strength: float,
        set_cond_area: str,
        mask: Any = None,
        hooks: Any = None,
        timesteps: Range | None = None,
    ) -> tuple[list, list]:
        return tuple(
            comfy.hooks.set_conds_props_and_combine(
                [positive, negative], [positive_NEW, negative_NEW], strength, set_cond_area, mask, hooks, timesteps
            )
        )


class PairConditioningSetDefaultCombine(_Pair):
    DESCRIPTION = "Adds a pair of conditionings that acts wherever the others leave room."
    DISPLAY_NAME = "Cond Pair Set Default Combine"
    FUNCTION = "set_default_and_combine"

    @classmethod
    def INPUT_TYPES(cls):
        default = _conditioning("Conditioning that fills the rest.")
        return {
            "required": {
                "positive": OLD,
                "negative": OLD,
                "positive_DEFAULT": default,
                "negative_DEFAULT": default,
            },
            "optional": {"hooks": HOOKS},
        }

    def set_default_and_combine(
        self, positive: list, negative: list, positive_DEFAULT: list, negative_DEFAULT: list, hooks: Any = None
    ) -> tuple[list, list]:
        return tuple(
            comfy.hooks.set_default_conds_and_combine([positive, negative], [positive_DEFAULT, negative_DEFAULT], hooks)
        )


class PairConditioningCombine(_Pair):
    DESCRIPTION = "Puts two pairs of conditionings together."
    DISPLAY_NAME = "Cond Pair Combine"
    FUNCTION = "combine"

    @classmethod
    def INPUT_TYPES(cls):
        names = ("positive_A", "negative_A", "positive_B", "negative_B")
        return {"required": {name: _conditioning("Conditioning to combine.") for name in names}}

    def combine(self, positive_A: list, negative_A: list, positive_B: list, negative_B: list) -> tuple[list, list]:
        return (positive_A + positive_B, negative_A + negative_B)


class ConditioningTimestepsRange:
    DESCRIPTION = "A part of sampling, and what comes before and after it."
    DISPLAY_NAME = "Timesteps Range"
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks"
    RETURN_TYPES = ("TIMESTEPS_RANGE", "TIMESTEPS_RANGE", "TIMESTEPS_RANGE")
    RETURN_NAMES = ("TIMESTEPS_RANGE", "BEFORE_RANGE", "AFTER_RANGE")
    FUNCTION = "create_range"

    @classmethod
    def INPUT_TYPES(cls):
        percent = {"min": 0.0, "max": 1.0, "step": 0.001}
        return {
            "required": {
                "start_percent": (
                    "FLOAT",
                    {"default": 0.0, **percent, "tooltip": "Where it begins; 0 is the first step."},
                ),
                "end_percent": ("FLOAT", {"default": 1.0, **percent, "tooltip": "Where it ends; 1 is the last step."}),
            }
        }

    def create_range(self, start_percent: float, end_percent: float) -> tuple[Range, Range, Range]:
        return ((start_percent, end_percent), (0.0, start_percent), (end_percent, 1.0))


class SetClipHooks:
    DESCRIPTION = "Lets hooks act on a text encoder, and on the model for what it encodes."
    DISPLAY_NAME = "Set CLIP Hooks"
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/clip"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "apply_hooks"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "clip": ("CLIP", {"tooltip": "Text encoder to change."}),
                "apply_to_conds": (
                    "BOOLEAN",
                    {
                        "default": True,
                        "advanced": True,
                        "tooltip": "Whether what it encodes carries the hooks to the diffusion model.",
                    },
                ),
                "schedule_clip": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "advanced": True,
                        "tooltip": "Whether keyframes act on the encoder too: then it encodes once for each.",
                    },
                ),
            },
            "optional": {"hooks": ("HOOKS", {"tooltip": "The hooks; without any nothing changes."})},
        }

    def apply_hooks(self, clip: Any, apply_to_conds: bool, schedule_clip: bool, hooks: Any = None) -> tuple[Any]:
        if hooks is None:
            return (clip,)
        changed = clip.clone()
        changed.set_hooks(hooks, apply_to_conds, schedule_clip)
        return (changed,)


NODES = {
    "comfy_extras.nodes_hooks": [
        ConditioningSetProperties,
        ConditioningSetPropertiesAndCombine,
        ConditioningSetDefaultCombine,
        PairConditioningSetProperties,
        PairConditioningSetPropertiesAndCombine,
        PairConditioningSetDefaultCombine,
        PairConditioningCombine,
        ConditioningTimestepsRange,
        SetClipHooks,
    ],
}
