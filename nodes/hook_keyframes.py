"""Nodes that say how strong hooks are in the course of sampling. HOOK_KEYFRAMES: `comfy.hooks.HookKeyframeGroup`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from comfy.hooks import HookKeyframe, HookKeyframeGroup

from .hooks import STRENGTH

log = logging.getLogger(__name__)


class _Keyframes:
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/scheduling"
    RETURN_TYPES = ("HOOK_KEYFRAMES",)
    RETURN_NAMES = ("HOOK_KF",)
    FUNCTION = "create_hook_keyframes"


PERCENT = {"min": 0.0, "max": 1.0, "step": 0.001}
START = ("FLOAT", {"default": 0.0, **PERCENT, "tooltip": "Where in sampling it begins; 0 is the first step."})
END = ("FLOAT", {"default": 1.0, **PERCENT, "tooltip": "Where in sampling the last one begins; 1 is the end."})
PRINT = ("BOOLEAN", {"default": False, "advanced": True, "tooltip": "Whether to write the keyframes to the log."})
PREVIOUS_KEYFRAMES = {"prev_hook_kf": ("HOOK_KEYFRAMES", {"tooltip": "Keyframes to add these to."})}


class CreateHookKeyframe(_Keyframes):
    DESCRIPTION = "From a point of sampling on, a factor for the strength of hooks."
    DISPLAY_NAME = "Create Hook Keyframe"
    FUNCTION = "create_hook_keyframe"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"strength_mult": ("FLOAT", {**STRENGTH, "tooltip": "The factor."}), "start_percent": START},
            "optional": PREVIOUS_KEYFRAMES,
        }

    def create_hook_keyframe(
        self, strength_mult: float, start_percent: float, prev_hook_kf: HookKeyframeGroup | None = None
    ) -> tuple[HookKeyframeGroup]:
        keyframes = (prev_hook_kf or HookKeyframeGroup()).clone()
        keyframes.add(HookKeyframe(strength_mult, start_percent))
        return (keyframes,)


# Fraction of the way from the first strength to the last, by fraction of the keyframes.
EASINGS: dict[str, Callable[[float], float]] = {
    "linear": lambda t: t,
    "ease_in": lambda t: t * t,
    "ease_out": lambda t: 1 - (1 - t) ** 2,
    "ease_in_out": lambda t: t * t * (3 - 2 * t),
}


class CreateHookKeyframesInterpolated(_Keyframes):
    DESCRIPTION = "Keyframes that lead from one strength of hooks to another."
    DISPLAY_NAME = "Create Hook Keyframes Interp."

    @classmethod
    def INPUT_TYPES(cls):
        strength = {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.001}
        return {
            "required": {
                "strength_start": ("FLOAT", {**strength, "tooltip": "Factor of the first keyframe."}),
                "strength_end": ("FLOAT", {**strength, "tooltip": "Factor of the last keyframe."}),
                "interpolation": (list(EASINGS), {"tooltip": "How the factor changes between them."}),
                "start_percent": START,
                "end_percent": END,
                "keyframes_count": (
                    "INT",
                    {"default": 5, "min": 2, "max": 100, "step": 1, "tooltip": "Number of keyframes."},
                ),
                "print_keyframes": PRINT,
            },
            "optional": PREVIOUS_KEYFRAMES,
        }

    def create_hook_keyframes(
        self,
        strength_start: float,
        strength_end: float,
        interpolation: str,
        start_percent: float,
        end_percent: float,
        keyframes_count: int,
        print_keyframes: bool = False,
        prev_hook_kf: HookKeyframeGroup | None = None,
    ) -> tuple[HookKeyframeGroup]:
        ease = EASINGS[interpolation]
        strengths = [
            strength_start + (strength_end - strength_start) * ease(i / (keyframes_count - 1))
            for i in range(keyframes_count)
        ]
        return (_spread(prev_hook_kf, strengths, start_percent, end_percent, print_keyframes),)


class KeyframeStrengthsError(ValueError):
    """Strengths for keyframes that are no finite numbers."""


class CreateHookKeyframesFromFloats(_Keyframes):
    DESCRIPTION = "Keyframes whose strengths are given as numbers, at even distances."
    DISPLAY_NAME = "Create Hook Keyframes From Floats"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "floats_strength": (
                    "FLOATS",
                    {"default": -1, "min": -1, "step": 0.001, "forceInput": True, "tooltip": "Factors in order."},
                ),
                "start_percent": START,
                "end_percent": END,
                "print_keyframes": PRINT,
            },
            "optional": PREVIOUS_KEYFRAMES,
        }

    def create_hook_keyframes(
        self,
        floats_strength: Any,
        start_percent: float,
        end_percent: float,
        print_keyframes: bool = False,
        prev_hook_kf: HookKeyframeGroup | None = None,
    ) -> tuple[HookKeyframeGroup]:
        given = [floats_strength] if isinstance(floats_strength, (int, float)) else floats_strength
        try:
            strengths = [float(value) for value in given]
        except (TypeError, ValueError):
            raise KeyframeStrengthsError(f"floats_strength is no number and no list of them: {given!r:.80}") from None
        if not strengths or not all(map(math.isfinite, strengths)):
            raise KeyframeStrengthsError(f"floats_strength needs finite numbers, at least one: {given!r:.80}")
        return (_spread(prev_hook_kf, strengths, start_percent, end_percent, print_keyframes),)


def _spread(
    previous: HookKeyframeGroup | None, strengths: list[float], start: float, end: float, tell: bool
) -> HookKeyframeGroup:
    """`previous` and keyframes at even distances from start to end. Only the first is sure of a step: of the others
    those that begin within one step are passed over."""
    keyframes = (previous or HookKeyframeGroup()).clone()
    for i, strength in enumerate(strengths):
        percent = start + (end - start) * i / max(len(strengths) - 1, 1)
        keyframes.add(HookKeyframe(strength, percent, guarantee_steps=1 if i == 0 else 0))
        if tell:
            log.info("keyframe %d: from %.3f of sampling on strength %.3f", i + 1, percent, strength)
    return keyframes


NODES = {
    "comfy_extras.nodes_hooks": [
        CreateHookKeyframe,
        CreateHookKeyframesInterpolated,
        CreateHookKeyframesFromFloats,
    ],
}
