"""Hooks during a run: which weights each evaluation sees, by entry and by sigma."""

from __future__ import annotations

import pytest
import torch
import toy
from conditioning_cases import RECORDED
from torch import nn

import comfy.devices
import comfy.hooks as hooks
import comfy.model_patcher
import comfy.patcher_hooks
import comfy.sample
import comfy.samplers
from comfy.text_encoders.clip_handle import CLIP

CPU = torch.device("cpu")
STEPS = 8


class Moved(toy.ToyModel):
    """Adds its weight to what it predicts; `seen` logs (sigma, rows, cond_or_uncond, weight)."""

    def __init__(self, kind: str = "eps") -> None:
        super().__init__(kind)
        self.moved = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.moved.weight)
        self.seen: list[tuple[float, int, list[int], float]] = []

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        weight = float(self.moved.weight)
        self.seen.append((float(t[0]), x.shape[0], list(transformer_options["cond_or_uncond"]), weight))
        return super().apply_model(x, t, c_crossattn, transformer_options) + weight


@pytest.fixture
def patcher():
    with torch.inference_mode():
        yield comfy.model_patcher.ModelPatcher(Moved(), CPU, CPU)


def hook(amount: float) -> hooks.HookGroup:
    """A group with one hook that sets the weight to `amount`."""
    group = hooks.HookGroup()
    patch = ("diff", (torch.full((1, 1), amount),))
    group.add(hooks.WeightHook(1.0, 1.0, {"moved.weight": patch}, is_diff=True))
    return group


def scheduled(amount: float, *frames: tuple[float, float]) -> hooks.HookGroup:
    """The same with keyframes (strength, start)."""
    group, keyframes = hook(amount), hooks.HookKeyframeGroup()
    for strength, start in frames:
        keyframes.add(hooks.HookKeyframe(strength, start))
    group.set_keyframes_on_hooks(keyframes)
    return group


def entry(name: str, group: hooks.HookGroup | None = None, **options) -> list:
    return [RECORDED[f"cond/{name}"], {**({} if group is None else {"hooks": group}), **options}]


def sample(patcher, positive, negative, sampler: str = "euler", cfg: float = 3.0, sigmas=None) -> torch.Tensor:
    patcher.model.seen.clear()
    if sigmas is None:
        sigmas = comfy.samplers.calculate_sigmas(patcher.model.model_sampling, "simple", STEPS)
    latent = torch.zeros(1, 4, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)
    solver = comfy.samplers.sampler_object(sampler)
    return comfy.sample.sample_custom(patcher, noise, cfg, solver, sigmas, positive, negative, latent, seed=3)


def test_entries_with_other_hooks_are_not_batched_together(patcher):
    one, two = hook(1.0), hook(2.0)
    sample(patcher, [entry("A", one), entry("B", two), entry("C")], [entry("NEG", two)])
    assert len(patcher.model.seen) == 3 * STEPS
    by_weight = {weight: (rows, order) for _, rows, order, weight in patcher.model.seen}
    assert by_weight == {1.0: (1, [0]), 2.0: (2, [1, 0]), 0.0: (1, [0])}
    assert float(patcher.model.moved.weight) == 0.0


def test_one_hook_for_all_keeps_the_batch(patcher):
    group = hook(1.0)
    sample(patcher, [entry("A", group)], [entry("NEG", group)])
    assert [(rows, order, weight) for _, rows, order, weight in patcher.model.seen] == [(2, [1, 0], 1.0)] * STEPS


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "dpmpp_2m", "lcm", "seeds_3"])
def test_a_keyframe_begins_at_its_sigma(patcher, sampler):
    group = scheduled(1.0, (1.0, 0.0), (0.25, 0.5))
    sample(patcher, [entry("A", group)], [entry("NEG", group)], sampler)
    switch = patcher.model.model_sampling.percent_to_sigma(0.5)
    weights = {sigma: weight for sigma, _, _, weight in patcher.model.seen}
    assert set(weights.values()) == {1.0, 0.25}
    first_below = next(i for i, (_, _, _, weight) in enumerate(patcher.model.seen) if weight == 0.25)
    # From the first evaluation at or below that sigma on, and not before.
    sigmas = [sigma for sigma, *_ in patcher.model.seen]
    assert sigmas[first_below] <= switch and all(sigma > switch for sigma in sigmas[:first_below])
    assert all(weight == 0.25 for *_, weight in patcher.model.seen[first_below:])


def test_a_keyframe_begins_exactly_at_its_sigma(patcher):
    switch = patcher.model.model_sampling.percent_to_sigma(0.5)
    sigmas = torch.tensor([10.0, torch.nextafter(torch.tensor(switch), torch.tensor(99.0)).item(), switch, 0.1, 0.0])
    group = scheduled(1.0, (1.0, 0.0), (0.25, 0.5))
    sample(patcher, [entry("A", group)], [entry("NEG", group)], sigmas=sigmas)
    assert [weight for *_, weight in patcher.model.seen] == [1.0, 1.0, 0.25, 0.25]


def test_a_run_with_a_switch_is_two_runs(patcher):
    """Two patched runs one after the other, cut where the keyframe begins."""
    sigmas = comfy.samplers.calculate_sigmas(patcher.model.model_sampling, "simple", STEPS)
    switch = patcher.model.model_sampling.percent_to_sigma(0.5)
    cut = int((sigmas > switch).sum())
    plain = [[entry("A")], [entry("NEG")]]
    amounts = {}
    for strength in (1.0, -0.5):
        amounts[strength] = patcher.clone()
        amounts[strength].add_patches({"moved.weight": ("diff", (torch.full((1, 1), strength),))})
    noise = comfy.sample.prepare_noise(torch.zeros(1, 4, 8, 8), 3)
    solver = comfy.samplers.sampler_object("euler")
    latent = torch.zeros(1, 4, 8, 8)
    half = comfy.sample.sample_custom(amounts[1.0], noise, 3.0, solver, sigmas[: cut + 1], *plain, latent)
    expected = comfy.sample.sample_custom(
        amounts[-0.5], torch.zeros_like(noise), 3.0, solver, sigmas[cut:], *plain, half
    )
    group = scheduled(1.0, (1.0, 0.0), (-0.5, 0.5))
    got = sample(patcher, [entry("A", group)], [entry("NEG", group)])
    assert toy.difference(got, expected) <= 1e-5


def test_a_range_and_a_hook(patcher):
    """An entry's hook acts while the entry does, the other entry's when that one does."""
    first, second = hook(1.0), hook(2.0)
    halves = [
        entry("A", first, start_percent=0.0, end_percent=0.5),
        entry("A", second, start_percent=0.5, end_percent=1.0),
    ]
    sample(patcher, halves, [entry("NEG")], cfg=1.0)
    switch = patcher.model.model_sampling.percent_to_sigma(0.5)
    assert {weight for sigma, _, _, weight in patcher.model.seen if sigma > switch} == {1.0}
    assert {weight for sigma, _, _, weight in patcher.model.seen if sigma < switch} == {2.0}


def test_scheduled_encodings_replace_each_other(patcher):
    """What `SetClipHooks` gives with a schedule: one entry for each part of the run."""
    parts = [entry("A", clip_start_percent=0.0, clip_end_percent=0.5, start_percent=0.25)]
    parts += [entry("B", clip_start_percent=0.5, clip_end_percent=1.0, end_percent=0.75)]
    guider = comfy.samplers.CFGGuider(patcher)
    guider.set_conds(parts, [])
    conds = comfy.samplers.process_conds(patcher.model, torch.zeros(1, 4, 8, 8), dict(guider.original_conds), CPU)[
        "positive"
    ]
    percent = patcher.model.model_sampling.percent_to_sigma
    ranges = [(c["timestep_start"], c["timestep_end"]) for c in conds]
    assert ranges[0] == pytest.approx((percent(0.25), percent(0.5)))
    assert ranges[1] == pytest.approx((percent(0.5), percent(0.75)))


def test_weights_are_computed_once_a_run(patcher, monkeypatch):
    computed = []
    monkeypatch.setattr(
        comfy.model_patcher.ModelPatcher,
        "calculate_weight",
        lambda self, patches, weight, key, *args, **kwargs: computed.append(key) or weight + patches[0][0],
    )
    sample(patcher, [entry("A", hook(1.0))], [entry("NEG", hook(2.0))])
    assert len(patcher.model.seen) == 2 * STEPS and len(computed) == 2
    computed.clear()
    # Not so where there is no memory for them.
    monkeypatch.setattr(comfy.devices, "get_free_memory", lambda *args, **kwargs: 0)
    sample(patcher, [entry("A", hook(1.0))], [entry("NEG", hook(2.0))])
    assert len(computed) == 2 * STEPS


def test_many_strengths_do_not_pile_up(patcher):
    frames = [(1.0 - i / 100, i / 100) for i in range(100)]
    group = scheduled(1.0, *frames)
    most = []

    def watch(step, x0, x, total):
        most.append(len(patcher._kept_weights))

    sigmas = comfy.samplers.calculate_sigmas(patcher.model.model_sampling, "simple", 20)
    latent = torch.zeros(1, 4, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)
    comfy.sample.sample_custom(
        patcher, noise, 3.0, comfy.samplers.sampler_object("euler"), sigmas, [entry("A", group)], [entry("NEG", group)],
        latent, callback=watch, seed=3,
    )  # fmt: skip
    assert len({weight for *_, weight in patcher.model.seen}) > 10
    assert max(most) <= comfy.patcher_hooks.KEPT_SETS and not patcher._kept_weights


def test_an_error_leaves_no_hook_in_force(patcher):
    def fail(step, x0, x, total):
        raise RuntimeError("stop")

    latent = torch.zeros(1, 4, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 3)
    with pytest.raises(RuntimeError, match="stop"):
        comfy.sample.sample_custom(
            patcher, noise, 1.0, comfy.samplers.sampler_object("euler"), torch.tensor([5.0, 1.0, 0.0]),
            [entry("A", hook(1.0))], [entry("NEG")], latent, callback=fail, seed=3,
        )  # fmt: skip
    assert float(patcher.model.moved.weight) == 0.0


def test_the_next_run_knows_nothing_of_hooks(patcher):
    group = scheduled(1.0, (0.0, 0.0), (1.0, 0.5))
    sample(patcher, [entry("A", group)], [entry("NEG")])
    first = [weight for *_, weight in patcher.model.seen]
    sample(patcher, [entry("A", group)], [entry("NEG")])
    assert [weight for *_, weight in patcher.model.seen] == first  # keyframes begin anew
    sample(patcher, [entry("A")], [entry("NEG")])
    assert {weight for *_, weight in patcher.model.seen} == {0.0}
    assert not patcher.registered_hooks.hooks


def test_a_clone_of_the_encoder_keeps_its_hooks():
    clip = CLIP(no_init=True)
    with torch.inference_mode():
        clip.patcher = comfy.model_patcher.ModelPatcher(Moved(), CPU, CPU)
    clip.patcher.is_clip = True
    clip.cond_stage_model, clip.tokenizer, clip.layer_idx = clip.patcher.model, None, None
    clip.tokenizer_options, clip.use_clip_schedule, clip.apply_hooks_to_conds = {}, False, None
    clip.set_hooks(hook(1.0), apply_to_conds=False, schedule=True)
    clone = clip.clone()
    assert clone.use_clip_schedule and clone.patcher.forced_hooks is clip.patcher.forced_hooks
    assert clone.patcher.hook_patches.keys() == clip.patcher.hook_patches.keys()
