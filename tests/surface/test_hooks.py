"""Hooks of conditioning: groups, keyframes, and weights that are patched for some entries only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import comfy.hooks as hooks
from comfy.model_patcher import ModelPatcher

CPU = torch.device("cpu")


class Sampling:
    def percent_to_sigma(self, percent):
        return 10.0 * (1 - percent)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.layer.weight)
        self.model_sampling = Sampling()


def difference(amount: float, strength: float = 1.0) -> hooks.WeightHook:
    return hooks.WeightHook(strength, 1.0, {"layer.weight": ("diff", (torch.full((2, 2), amount),))}, is_diff=True)


def group(*members) -> hooks.HookGroup:
    made = hooks.HookGroup()
    for member in members:
        made.add(member)
    return made


@pytest.fixture
def patcher():
    return ModelPatcher(Tiny(), CPU, CPU)


def weight(patcher) -> float:
    values = patcher.model.layer.weight.detach().unique()
    assert len(values) == 1
    return float(values)


def test_groups():
    a, b = difference(1), difference(2)
    both = group(a, b, a)
    assert both.hooks == [a, b] and len(both) == 2 and both.contains(a)
    copy = both.clone()
    assert copy.hooks == both.hooks and copy.hooks[0] is not a
    assert copy.hooks[0].hook_keyframe is not a.hook_keyframe
    joined = group(a).clone_and_combine(group(b, a))
    assert joined.hooks == [a, b] and group(a).is_subset_of(joined) and not joined.is_subset_of(group(a))
    assert hooks.HookGroup.combine_all_hooks([None, group(a), group(b)]).hooks == [a, b]
    assert hooks.HookGroup.combine_all_hooks([]) is None
    assert hooks.HookGroup.combine_all_hooks([group(a)], require_count=2) is None
    both.remove(a)
    assert both.hooks == [b] and both.get_type(hooks.EnumHookType.Weight) == [b]
    assert not both.get_type(hooks.EnumHookType.TransformerOptions)


def test_keyframes_go_on_with_sigma():
    frames = hooks.HookKeyframeGroup()
    for strength, start in ((0.5, 0.5), (1.0, 0.0), (0.0, 0.75)):
        frames.add(hooks.HookKeyframe(strength, start))
    frames.initialize_timesteps(Tiny())
    seen = []
    for sigma in (10.0, 10.0, 7.0, 5.0, 3.0, 2.5, 1.0):
        changed = frames.prepare_current_keyframe(sigma)
        seen.append((frames.strength, changed))
    assert [strength for strength, _ in seen] == [1.0, 1.0, 1.0, 0.5, 0.5, 0.0, 0.0]
    assert [changed for _, changed in seen] == [False, False, False, True, False, True, False]
    frames.reset()
    assert frames.strength == 1.0 and hooks.HookKeyframeGroup().strength == 1.0


def test_keyframes_stay_for_the_steps_they_are_promised():
    frames = hooks.HookKeyframeGroup()
    frames.add(hooks.HookKeyframe(1.0, 0.0, guarantee_steps=2))
    frames.add(hooks.HookKeyframe(0.3, 0.1, guarantee_steps=0))
    frames.add(hooks.HookKeyframe(0.2, 0.2, guarantee_steps=1))
    frames.initialize_timesteps(Tiny())
    seen = []
    for sigma in (10.0, 5.0, 4.0):
        frames.prepare_current_keyframe(sigma)
        seen.append(frames.strength)
    assert seen == [1.0, 1.0, 0.2]


def test_weights_follow_the_entries(patcher):
    one, two = group(difference(1.0)), group(difference(2.0, strength=0.5), difference(10.0))
    all_hooks = hooks.HookGroup()
    all_hooks.hooks = one.hooks + two.hooks
    options = {}
    patcher.register_all_hook_patches(all_hooks, {}, options)
    assert options["registered_hooks"] is all_hooks
    original = patcher.model.layer.weight.data_ptr()
    for wanted, expected in ((one, 2.0), (two, 12.0), (one, 2.0), (None, 1.0), (two, 12.0)):
        assert patcher.apply_hooks(wanted) == {} and weight(patcher) == expected
    patcher.cleanup()
    assert weight(patcher) == 1.0 and patcher.model.layer.weight.data_ptr() == original


def test_hooks_come_on_top_of_patches(patcher):
    patcher.add_patches({"layer.weight": ("diff", (torch.full((2, 2), 100.0),))})
    patcher.patch_model(CPU)
    wanted = group(difference(1.0))
    patcher.register_all_hook_patches(wanted, {})
    patcher.apply_hooks(wanted)
    assert weight(patcher) == 102.0
    patcher.apply_hooks(None)
    assert weight(patcher) == 101.0
    patcher.apply_hooks(wanted)
    patcher.unpatch_model(CPU)
    assert weight(patcher) == 1.0


def test_keyframes_scale_weights(patcher):
    wanted = group(difference(1.0))
    frames = hooks.HookKeyframeGroup()
    frames.add(hooks.HookKeyframe(0.5, 0.0))
    frames.add(hooks.HookKeyframe(2.0, 0.5))
    wanted.set_keyframes_on_hooks(frames)
    patcher.register_all_hook_patches(wanted, {})
    seen = []
    for sigma in (10.0, 4.0):
        patcher.prepare_state(torch.tensor([sigma]))
        patcher.apply_hooks(wanted)
        seen.append(weight(patcher))
    assert seen == [1.5, 3.0]


def test_weights_that_the_model_does_not_have_are_left_out(patcher):
    hook = hooks.WeightHook(1.0, 1.0, {"other.weight": ("diff", (torch.ones(2, 2),))}, is_diff=True)
    patcher.register_all_hook_patches(group(hook), {})
    patcher.apply_hooks(group(hook))
    assert weight(patcher) == 1.0


def test_a_clone_has_nothing_in_force(patcher):
    wanted = group(difference(1.0))
    patcher.register_all_hook_patches(wanted, {})
    clone = patcher.clone()
    clone.apply_hooks(wanted)
    assert weight(patcher) == 2.0
    clone.cleanup()
    assert weight(patcher) == 1.0


def test_options_of_the_transformer(patcher):
    hook = hooks.TransformerOptionsHook({"patches": {"attn1_patch": [len]}})
    other = hooks.TransformerOptionsHook({"patches": {"attn1_patch": [max]}, "number": 3})
    assert patcher.apply_hooks(group(hook, other)) == {"patches": {"attn1_patch": [len, max]}, "number": 3}
    assert hook.transformers_dict == {"patches": {"attn1_patch": [len]}}


def test_a_lora_as_a_hook():
    made = hooks.create_hook_lora({"k": torch.ones(1)}, 0.5, 0.25)
    (hook,) = made.hooks
    assert (hook.strength_model, hook.strength_clip) == (0.5, 0.25)


def test_conditioning():
    cond = [[torch.zeros(1, 1, 1), {"a": 1}], [torch.ones(1, 1, 1), {}]]
    wanted = group(difference(1.0))
    out = hooks.set_hooks_for_conditioning(cond, wanted)
    assert out[0][1] == {"a": 1, "hooks": wanted} and out[0][1]["hooks"] is out[1][1]["hooks"]
    assert "hooks" not in cond[0][1] and hooks.set_hooks_for_conditioning(cond, None) is cond
    more = hooks.set_hooks_for_conditioning(out, group(difference(2.0)))
    assert len(more[0][1]["hooks"]) == 2 and more[0][1]["hooks"] is more[1][1]["hooks"]
    assert len(hooks.set_hooks_for_conditioning(out, wanted, append_hooks=False)[0][1]["hooks"]) == 1


def test_properties_of_conditioning():
    cond = [[torch.zeros(1, 1, 1), {}]]
    mask = torch.ones(4, 4)
    (positive, negative) = hooks.set_conds_props_and_combine(
        [cond, cond], [cond, cond], 0.5, "mask bounds", mask, group(difference(1.0)), (0.25, 0.75)
    )
    assert len(positive) == 2 and positive[0] is cond[0]
    made = positive[1][1]
    assert made["mask"].shape == (1, 4, 4) and made["mask_strength"] == 0.5 and made["set_area_to_bounds"] is True
    assert (made["start_percent"], made["end_percent"]) == (0.25, 0.75)
    assert made["hooks"] is negative[1][1]["hooks"]
    ((_, default),) = hooks.set_default_conds_and_combine([cond], [cond])
    assert default[1] == {"default": True}
