"""Guiders of two parts: a second model for the negative, a second strength for the sound of a video."""

from __future__ import annotations

import pytest
import torch

import comfy.model_patcher
import comfy.sample
import comfy.samplers
import nodes
from comfy.nested_tensor import NestedTensor
from nodes.guiders import SharedModelError
from nodes.model_sampling import NotAFlowModelError
from tests.sampling import toy

CPU = torch.device("cpu")
RECORDED = toy.tensors("conditioning")
A, NEGATIVE = ([[RECORDED[f"cond/{name}"], {}]] for name in ("A", "NEG"))


def run(name: str, **inputs):
    cls = nodes.NODE_CLASS_MAPPINGS[name]
    return (cls.execute(**inputs).args if hasattr(cls, "GET_SCHEMA") else getattr(cls(), cls.FUNCTION)(**inputs))[0]


def fresh(kind: str = "eps", bias: float = 0.0) -> comfy.model_patcher.ModelPatcher:
    """A patcher of a model of its own, whose predictions are moved by `bias`."""

    class Moved(toy.ToyModel):
        def apply_model(self, *args, **kwargs):
            return super().apply_model(*args, **kwargs) + bias

    return comfy.model_patcher.ModelPatcher(Moved(kind), CPU, CPU)


def sample(guider, sampler: str = "euler") -> torch.Tensor:
    latent = torch.zeros(1, 4, 8, 8)
    sampling = guider.model_patcher.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(sampling, "simple", 4)
    noise = comfy.sample.prepare_noise(latent, 3)
    return guider.sample(noise, latent, comfy.samplers.sampler_object(sampler), sigmas, seed=3)


def dual(model, other=None, cfg: float = 3.0, negative: list | None = NEGATIVE):
    return run("DualModelGuider", model=model, positive=A, cfg=cfg, model_negative=other, negative=negative)


def plain(model, cfg: float = 3.0):
    return run("CFGGuider", model=model, positive=A, negative=NEGATIVE, cfg=cfg)


def test_two_equal_models_guide_like_one():
    first, second = fresh(), fresh()
    expected = sample(plain(fresh()))
    assert torch.allclose(sample(dual(first, second)), expected, atol=1e-6)
    # Each was asked for its own side, once a step.
    assert [order for _, _, order in first.model.calls] == [[0]] * 4
    assert [order for _, _, order in second.model.calls] == [[0]] * 4
    assert torch.allclose(sample(dual(fresh())), expected, atol=1e-6)


def test_the_negative_comes_from_the_other_model():
    """u = D + 1, c = D: guidance c + 2 (c - u) is off by -2 at the first step."""
    x = torch.ones(1, 4, 8, 8)
    seen = []

    def solver(model, start, sigmas, extra_args=None, callback=None, disable=None):
        seen.append(model(x, x.new_full((1,), 2.0), **(extra_args or {})))
        return start

    for guider in (plain(fresh()), dual(fresh(), fresh(bias=1.0))):
        guider.sample(x, x, comfy.samplers.KSAMPLER(solver), torch.tensor([2.0, 0.0]), seed=0)
    assert torch.allclose(seen[1], seen[0] - 2.0, atol=1e-5)


def test_without_guidance_the_other_model_is_not_asked():
    other = fresh()
    sample(dual(fresh(), other, cfg=1.0))
    assert other.model.calls == []
    sample(dual(fresh(), other, cfg=1.0), "euler_cfg_pp")  # needs the negative all the same
    assert len(other.model.calls) == 4


def test_no_negative_is_an_empty_one():
    empty = [[torch.zeros_like(A[0][0]), {}]]
    expected = sample(run("CFGGuider", model=fresh(), positive=A, negative=empty, cfg=3.0))
    assert torch.allclose(sample(dual(fresh(), fresh(), negative=None)), expected, atol=1e-6)
    assert torch.allclose(sample(dual(fresh(), negative=None)), expected, atol=1e-6)


def test_options_and_wrappers_of_the_other_model_are_its_own():
    other = fresh()
    seen = []

    def wrapper(apply_model, args):
        seen.append((args["cond_or_uncond"], args["c"]["transformer_options"]["sample_sigmas"].shape))
        return apply_model(args["input"], args["timestep"], **args["c"])

    other.set_model_unet_function_wrapper(wrapper)
    sample(dual(fresh(), other))
    assert seen == [([0], (5,))] * 4
    assert other.model.current_patcher is None  # let go of after the run


def test_one_model_cannot_have_two_sets_of_patches():
    model = fresh()
    patched = model.clone()
    patched.add_patches({"anchor": ("diff", (torch.ones(1),))})
    with pytest.raises(SharedModelError, match="load the file twice"):
        dual(model, patched)
    expected = sample(plain(fresh()))
    assert torch.allclose(sample(dual(model, model.clone())), expected, atol=1e-6)


# --- picture and sound ------------------------------------------------------------------------------


class AudioVideo(toy.ToyModel):
    """Predicts 1 everywhere for A and 0 for the other conditioning."""

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        self.calls.append((float(t[0]), x.shape[0], list(transformer_options["cond_or_uncond"])))
        is_a = (c_crossattn[:, :1, :1] == A[0][0][:, :1, :1]).to(x.dtype)
        return torch.ones_like(x) * is_a.reshape(-1, *[1] * (x.ndim - 1))


def guided(video_cfg: float, audio_cfg: float, latent) -> tuple:
    model = comfy.model_patcher.ModelPatcher(AudioVideo("eps"), CPU, CPU)
    guider = run(
        "LTXVDualCFGGuider", model=model, positive=A, negative=NEGATIVE, video_cfg=video_cfg, audio_cfg=audio_cfg
    )
    noise = comfy.sample.prepare_noise(latent, 0)
    sampler = comfy.samplers.sampler_object("euler")
    return guider.sample(noise, latent, sampler, torch.tensor([5.0, 0.0]), seed=0), model.model.calls


def test_picture_and_sound_have_strengths_of_their_own():
    latent = NestedTensor([torch.zeros(1, 4, 2, 6, 6), torch.zeros(1, 8, 3, 5)])
    result, calls = guided(3.0, 7.0, latent)
    video, audio = result.unbind()
    assert video.shape == (1, 4, 2, 6, 6) and audio.shape == (1, 8, 3, 5)
    assert torch.allclose(video, torch.full_like(video, 3.0), atol=1e-5)
    assert torch.allclose(audio, torch.full_like(audio, 7.0), atol=1e-5)
    assert [order for _, _, order in calls] == [[1, 0]]
    # A strength of 1 for one of them does not leave the other without guidance.
    video, audio = guided(1.0, 7.0, latent)[0].unbind()
    assert torch.allclose(video, torch.ones_like(video), atol=1e-5)
    assert torch.allclose(audio, torch.full_like(audio, 7.0), atol=1e-5)
    assert [order for _, _, order in guided(1.0, 1.0, latent)[1]] == [[0]]


def test_a_picture_alone_has_the_strength_of_the_picture():
    result, _ = guided(3.0, 7.0, torch.zeros(1, 4, 6, 6))
    assert torch.allclose(result, torch.full_like(result, 3.0), atol=1e-5)


# --- noise levels -----------------------------------------------------------------------------------


def test_the_shift_of_ltx_video_goes_by_the_size():
    model = toy.patcher("flow3")
    shifts = {"max_shift": 2.05, "base_shift": 0.95}
    for latent, shift in (
        (None, 2.05),
        ({"samples": torch.zeros(1, 128, 4, 16, 16)}, 0.95),
        ({"samples": NestedTensor([torch.zeros(1, 128, 4, 16, 16), torch.zeros(1, 8, 9, 9)])}, 0.95),
    ):
        patched = run("ModelSamplingLTXV", model=model, latent=latent, **shifts)
        assert patched.get_model_object("model_sampling").shift == pytest.approx(shift)
        # The scheduler of the family spaces its steps by the same shift.
        sigmas = run("LTXVScheduler", steps=8, stretch=False, terminal=0.1, latent=latent, **shifts)
        table = patched.get_model_object("model_sampling")
        assert torch.allclose(table.sigma(torch.linspace(1, 0, 9)[1:-1]), sigmas[1:-1], atol=1e-5)


def test_the_scale_of_noise_is_that_of_the_recorded_model():
    recorded = toy.patcher("flow3_noisescale8").get_model_object("model_sampling")
    model = toy.patcher("flow3")
    scaled = run("ModelNoiseScale", model=model, noise_scale=8.0).get_model_object("model_sampling")
    noise, latent = torch.ones(1, 4, 2, 2), torch.zeros(1, 4, 2, 2)
    sigma = torch.tensor([0.5])
    assert torch.equal(scaled.noise_scaling(sigma, noise, latent), recorded.noise_scaling(sigma, noise, latent))
    assert torch.equal(scaled.sigmas, recorded.sigmas)
    assert model.get_model_object("model_sampling").noise_scale == 1.0
    with pytest.raises(NotAFlowModelError, match="8"):
        run("ModelNoiseScale", model=toy.patcher("eps"), noise_scale=8.0)
