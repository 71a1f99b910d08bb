"""Nodes that make hooks: changes to a model that only some conditionings ask for. HOOKS: `comfy.hooks.HookGroup`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import comfy.hooks
import folder_paths
from comfy.hooks import HookGroup, HookKeyframeGroup

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
        CombineHooks2,
        CombineHooks4,
        CombineHooks8,
    ],
}
