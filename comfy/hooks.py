"""Hooks: changes to a model that only some entries of a conditioning ask for.

An entry's option `hooks` holds a `HookGroup`. While the model computes a prediction for that entry, its hooks are in
force: weights are patched, options of the transformer are merged in. A `HookKeyframeGroup` scales a hook over the
course of sampling. `comfy.patcher_hooks` puts hooks in force.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from comfy.hook_keyframes import HookKeyframe, HookKeyframeGroup
from comfy.patcher_extension import merge_nested_dicts


class EnumHookType(enum.Enum):
    """Kinds of hooks."""

    Weight = "weight"
    AdditionalModels = "add_models"
    TransformerOptions = "transformer_options"


class HookRef:
    """Identity of a hook: its clones have the same one."""


class Hook:
    """Something that is in force for some entries. `hook_keyframe` scales it; clones share `hook_ref`."""

    hook_type: EnumHookType | None = None

    def __init__(self, hook_ref: HookRef | None = None, hook_keyframe: HookKeyframeGroup | None = None):
        self.hook_ref = hook_ref or HookRef()
        self.hook_keyframe = hook_keyframe or HookKeyframeGroup()

    @property
    def strength(self) -> float:
        """What the keyframes say now."""
        return self.hook_keyframe.strength

    def clone(self) -> Hook:
        """A hook with the same identity, and keyframes of its own."""
        c = self.__class__.__new__(self.__class__)
        c.__dict__.update(self.__dict__)
        c.hook_keyframe = self.hook_keyframe.clone()
        return c

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.hook_ref is self.hook_ref

    def __hash__(self) -> int:
        return hash(self.hook_ref)


class WeightHook(Hook):
    """Patches of weights.

    weights: a LoRA's tensors by name, or with `is_diff` patches by the model's own names; weights_clip: with `is_diff`
    those of a text encoder. They are matched to a model when it registers the hook.
    """

    hook_type = EnumHookType.Weight

    def __init__(
        self,
        strength_model: float = 1.0,
        strength_clip: float = 1.0,
        weights: Mapping[str, Any] | None = None,
        is_diff: bool = False,
        weights_clip: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.weights = weights or {}
        self.weights_clip = weights_clip or {}
        self.is_diff = is_diff
        self._strength_model = strength_model
        self._strength_clip = strength_clip

    @property
    def strength_model(self) -> float:
        """Strength for diffusion models, now."""
        return self._strength_model * self.strength

    @property
    def strength_clip(self) -> float:
        """Strength for text encoders, now."""
        return self._strength_clip * self.strength

    def patches_for(self, patcher: Any) -> dict[Any, Any]:
        """key of a weight -> patch, for what the model of `patcher` has."""
        import comfy.lora

        if self.is_diff:
            return dict(self.weights_clip if patcher.is_clip else self.weights)
        if patcher.is_clip:
            names = comfy.lora.model_lora_keys_clip(patcher.model, {})
        else:
            names = comfy.lora.model_lora_keys_unet(patcher.model, {})
        return comfy.lora.load_lora(comfy.lora.convert_lora(self.weights), names, log_missing=False)


class AdditionalModelsHook(Hook):
    """Patchers that are loaded together with the model."""

    hook_type = EnumHookType.AdditionalModels

    def __init__(self, models: list[Any] | None = None, key: str | None = None):
        super().__init__()
        self.models = models or []
        self.key = key


class TransformerOptionsHook(Hook):
    """Entries that are merged into `transformer_options`: patches, replacements, wrappers."""

    hook_type = EnumHookType.TransformerOptions

    def __init__(self, transformers_dict: dict[str, Any] | None = None):
        super().__init__()
        self.transformers_dict = transformers_dict or {}


WrapperHook = TransformerOptionsHook


class HookGroup:
    """Hooks in order, each once."""

    def __init__(self):
        self.hooks: list[Hook] = []

    def __len__(self) -> int:
        return len(self.hooks)

    def add(self, hook: Hook) -> None:
        """Put a hook at the end, unless it is there."""
        if hook not in self.hooks:
            self.hooks.append(hook)

    def remove(self, hook: Hook) -> None:
        """Take a hook out, if it is there."""
        if hook in self.hooks:
            self.hooks.remove(hook)

    def contains(self, hook: Hook) -> bool:
        return hook in self.hooks

    def get_type(self, hook_type: EnumHookType) -> list[Hook]:
        """The hooks of one kind."""
        return [hook for hook in self.hooks if hook.hook_type is hook_type]

    def is_subset_of(self, other: HookGroup) -> bool:
        return set(self.hooks) <= set(other.hooks)

    def clone(self) -> HookGroup:
        """A group of clones."""
        c = HookGroup()
        for hook in self.hooks:
            c.add(hook.clone())
        return c

    def clone_and_combine(self, other: HookGroup | None) -> HookGroup:
        """Clones of these hooks and of the other group's."""
        c = self.clone()
        for hook in other.hooks if other is not None else ():
            c.add(hook.clone())
        return c

    def set_keyframes_on_hooks(self, hook_kf: HookKeyframeGroup | None) -> None:
        """Give every hook these keyframes (None: none)."""
        keyframes = (hook_kf or HookKeyframeGroup()).clone()
        for hook in self.hooks:
            hook.hook_keyframe = keyframes

    def keyframe_ranges(self) -> list[tuple[float, float]]:
        """The parts of sampling, as fractions of it, between which the strength of some hook changes."""
        percents = {0.0} | {k.start_percent for hook in self.hooks for k in hook.hook_keyframe.keyframes}
        starts: list[float] = []
        before: list[float] | None = None
        for percent in sorted(p for p in percents if p < 1.0):
            now = [hook.hook_keyframe.strength_at(percent) for hook in self.hooks]
            if now != before:
                starts.append(percent)
                before = now
        return list(zip(starts, [*starts[1:], 1.0]))

    def go_to_percent(self, percent: float) -> None:
        """Make the keyframes current that hold at this fraction of sampling."""
        for hook in self.hooks:
            hook.hook_keyframe.go_to_percent(percent)

    def reset(self) -> None:
        """All keyframes back to the first."""
        for hook in self.hooks:
            hook.hook_keyframe.reset()

    @staticmethod
    def combine_all_hooks(hooks_list: Iterable[HookGroup | None], require_count: int = 0) -> HookGroup | None:
        """One group of all; None when fewer than `require_count` groups, or none at all, are given."""
        groups = [group for group in hooks_list if group is not None]
        if not groups or len(groups) < require_count:
            return None
        combined = groups[0]
        for group in groups[1:]:
            combined = combined.clone_and_combine(group)
        return combined


def create_hook_lora(lora: Mapping[str, Tensor], strength_model: float, strength_clip: float) -> HookGroup:
    """A group with one hook: a LoRA's tensors."""
    group = HookGroup()
    group.add(WeightHook(strength_model, strength_clip, lora))
    return group


def create_hook_model_as_lora(
    weights_model: Mapping[str, Tensor],
    weights_clip: Mapping[str, Tensor],
    strength_model: float,
    strength_clip: float,
) -> HookGroup:
    """A group with one hook: what another model's weights, by name, have on top of those of the model it is used on."""
    group = HookGroup()
    group.add(
        WeightHook(
            strength_model,
            strength_clip,
            {name: ("model_as_lora", (weight,)) for name, weight in weights_model.items()},
            is_diff=True,
            weights_clip={name: ("model_as_lora", (weight,)) for name, weight in weights_clip.items()},
        )
    )
    return group


def create_transformer_options_from_hooks(hooks: Iterable[Hook]) -> dict[str, Any]:
    """What the hooks that are `TransformerOptionsHook`s merge into `transformer_options`."""
    merged: dict[str, Any] = {}
    for hook in hooks:
        if isinstance(hook, TransformerOptionsHook):
            merged = merge_nested_dicts(merged, hook.transformers_dict)
    return merged


def load_hook_lora_for_models(
    model: Any, clip: Any, lora: Mapping[str, Tensor], strength_model: float, strength_clip: float
) -> tuple[Any, Any, HookGroup]:
    """Clones of a model and a text side (either may be None), and a group with the LoRA for both."""
    group = create_hook_lora(lora, strength_model, strength_clip)
    return (None if model is None else model.clone()), (None if clip is None else clip.clone()), group


# Conditioning with hooks is a subject of its own; packs look for it here.
from comfy.cond_hooks import (  # noqa: E402
    set_conds_props,
    set_conds_props_and_combine,
    set_default_conds_and_combine,
    set_hooks_for_conditioning,
    set_mask_for_conditioning,
    set_timesteps_for_conditioning,
)

__all__ = [
    "AdditionalModelsHook",
    "EnumHookType",
    "Hook",
    "HookGroup",
    "HookKeyframe",
    "HookKeyframeGroup",
    "HookRef",
    "TransformerOptionsHook",
    "WeightHook",
    "WrapperHook",
    "create_hook_lora",
    "create_hook_model_as_lora",
    "create_transformer_options_from_hooks",
    "load_hook_lora_for_models",
    "set_conds_props",
    "set_conds_props_and_combine",
    "set_default_conds_and_combine",
    "set_hooks_for_conditioning",
    "set_mask_for_conditioning",
    "set_timesteps_for_conditioning",
]
