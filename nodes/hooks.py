"""Nodes that make hooks, changes to a model that only some conditionings ask for, and say when they act.

HOOKS: a `comfy.hooks.HookGroup`. HOOK_KEYFRAMES: a `comfy.hooks.HookKeyframeGroup`.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import comfy.hooks
import folder_paths
from comfy.hooks import HookGroup, HookKeyframe, HookKeyframeGroup

log = logging.getLogger(__name__)

STRENGTH = {"default": 1.0, "min": -20.0, "max": 20.0, "step": 0.01}
MODEL_STRENGTH = ("FLOAT", {**STRENGTH, "tooltip": "Strength for the diffusion model; negative values subtract."})
CLIP_STRENGTH = ("FLOAT", {**STRENGTH, "tooltip": "Strength for the text encoder; negative values subtract."})
PREVIOUS_HOOKS = {"prev_hooks": ("HOOKS", {"tooltip": "Hooks to add this one to."})}


class _FileHook:
    """A hook from a file that is read again only when another or a changed one is asked for."""

    EXPERIMENTAL = True
    RETURN_TYPES = ("HOOKS",)
    CATEGORY = "advanced/hooks/create"
    FUNCTION = "create_hook"
    FOLDER: str

    def __init__(self) -> None:
        self.loaded: tuple[str, float, Any] | None = None

    def _contents(self, name: str, read: Callable[[str], Any]) -> Any:
        path = folder_paths.get_full_path_or_raise(self.FOLDER, name)
        modified = os.path.getmtime(path)
        if self.loaded is None or self.loaded[:2] != (path, modified):
            self.loaded = None
            self.loaded = (path, modified, read(path))
        return self.loaded[2]

    @staticmethod
    def _after(previous: HookGroup | None, hooks: HookGroup | None) -> tuple[HookGroup]:
        return ((previous or HookGroup()).clone_and_combine(hooks),)


class CreateHookLora(_FileHook):
    DESCRIPTION = "A LoRA that acts on a model and its text encoder for those conditionings only that carry it."
    DISPLAY_NAME = "Create Hook LoRA"
    FOLDER = "loras"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "lora_name": (folder_paths.get_filename_list("loras"), {"tooltip": "File to load."}),
                "strength_model": MODEL_STRENGTH,
                "strength_clip": CLIP_STRENGTH,
            },
            "optional": PREVIOUS_HOOKS,
        }

    def create_hook(
        self, lora_name: str, strength_model: float, strength_clip: float, prev_hooks: HookGroup | None = None
    ) -> tuple[HookGroup]:
        if strength_model == 0 and strength_clip == 0:
            return self._after(prev_hooks, None)
        import comfy.lora

        lora, _ = self._contents(lora_name, comfy.lora.load_lora_file)
        return self._after(prev_hooks, comfy.hooks.create_hook_lora(lora, strength_model, strength_clip))


class CreateHookLoraModelOnly(CreateHookLora):
    DESCRIPTION = "A LoRA that acts on a model for those conditionings only that carry it."
    DISPLAY_NAME = "Create Hook LoRA (MO)"
    FUNCTION = "create_hook_model_only"

    @classmethod
    def INPUT_TYPES(cls):
        inputs = super().INPUT_TYPES()
        required = {name: spec for name, spec in inputs["required"].items() if name != "strength_clip"}
        return {"required": required, "optional": inputs["optional"]}

    def create_hook_model_only(
        self, lora_name: str, strength_model: float, prev_hooks: HookGroup | None = None
    ) -> tuple[HookGroup]:
        return self.create_hook(lora_name, strength_model, 0.0, prev_hooks)


class CreateHookModelAsLora(_FileHook):
    DESCRIPTION = "Moves a model towards another of its kind for those conditionings only that carry this hook."
    DISPLAY_NAME = "Create Hook Model as LoRA"
    FOLDER = "checkpoints"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "ckpt_name": (folder_paths.get_filename_list("checkpoints"), {"tooltip": "File of the other model."}),
                "strength_model": MODEL_STRENGTH,
                "strength_clip": CLIP_STRENGTH,
            },
            "optional": PREVIOUS_HOOKS,
        }

    def create_hook(
        self, ckpt_name: str, strength_model: float, strength_clip: float, prev_hooks: HookGroup | None = None
    ) -> tuple[HookGroup]:
        model, clip = self._contents(ckpt_name, _weights_of_checkpoint)
        hooks = comfy.hooks.create_hook_model_as_lora(model, clip, strength_model, strength_clip)
        return self._after(prev_hooks, hooks)


class CreateHookModelAsLoraModelOnly(CreateHookModelAsLora):
    DESCRIPTION = "Moves a diffusion model towards another of its kind for those conditionings that carry this hook."
    DISPLAY_NAME = "Create Hook Model as LoRA (MO)"
    FUNCTION = "create_hook_model_only"

    @classmethod
    def INPUT_TYPES(cls):
        inputs = super().INPUT_TYPES()
        required = {name: spec for name, spec in inputs["required"].items() if name != "strength_clip"}
        return {"required": required, "optional": inputs["optional"]}

    def create_hook_model_only(
        self, ckpt_name: str, strength_model: float, prev_hooks: HookGroup | None = None
    ) -> tuple[HookGroup]:
        return self.create_hook(ckpt_name, strength_model, 0.0, prev_hooks)


def _weights_of_checkpoint(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of a checkpoint's diffusion model and of its text encoder (none: empty), by the models' names."""
    import comfy.sd

    model, clip, _, _ = comfy.sd.load_checkpoint_guess_config(path, output_vae=False, output_clip=True)
    encoder = {} if clip is None else clip.patcher.model_state_dict()
    return model.model_state_dict("diffusion_model."), encoder


class SetHookKeyframes:
    DESCRIPTION = "Lets hooks act as strongly as keyframes say, in the course of sampling."
    DISPLAY_NAME = "Set Hook Keyframes"
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/scheduling"
    RETURN_TYPES = ("HOOKS",)
    FUNCTION = "set_hook_keyframes"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"hooks": ("HOOKS", {"tooltip": "Hooks to schedule."})},
            "optional": {"hook_kf": ("HOOK_KEYFRAMES", {"tooltip": "Keyframes; without any nothing changes."})},
        }

    def set_hook_keyframes(self, hooks: HookGroup, hook_kf: HookKeyframeGroup | None = None) -> tuple[HookGroup]:
        if hook_kf is None:
            return (hooks,)
        scheduled = hooks.clone()
        scheduled.set_keyframes_on_hooks(hook_kf)
        return (scheduled,)


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


class CombineHooks2:
    DESCRIPTION = "Puts hooks together; a hook that is in several groups acts once."
    DISPLAY_NAME = "Combine Hooks [2]"
    EXPERIMENTAL = True
    CATEGORY = "advanced/hooks/combine"
    RETURN_TYPES = ("HOOKS",)
    FUNCTION = "combine_hooks"
    GROUPS = "AB"

    @classmethod
    def INPUT_TYPES(cls):
        groups = {f"hooks_{letter}": ("HOOKS", {"tooltip": "Hooks."}) for letter in cls.GROUPS}
        return {"required": {}, "optional": groups}

    def combine_hooks(self, **groups: HookGroup | None) -> tuple[HookGroup | None]:
        return (HookGroup.combine_all_hooks([groups.get(f"hooks_{letter}") for letter in self.GROUPS]),)


class CombineHooks4(CombineHooks2):
    DISPLAY_NAME = "Combine Hooks [4]"
    GROUPS = "ABCD"


class CombineHooks8(CombineHooks2):
    DISPLAY_NAME = "Combine Hooks [8]"
    GROUPS = "ABCDEFGH"


NODES = {
    "comfy_extras.nodes_hooks": [
        CreateHookLora,
        CreateHookLoraModelOnly,
        CreateHookModelAsLora,
        CreateHookModelAsLoraModelOnly,
        SetHookKeyframes,
        CreateHookKeyframe,
        CreateHookKeyframesInterpolated,
        CreateHookKeyframesFromFloats,
        CombineHooks2,
        CombineHooks4,
        CombineHooks8,
    ],
}
