"""Nodes that sample: schedules against recorded ones, and samplers against each other on a toy model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import nodes
from nodes import custom_sampling, expression
from tests.sampling.toy import patcher, sampling_object

DATA = Path(__file__).parents[1] / "data" / "goldens"
RECORDED = json.loads((DATA / "schedules.json").read_text())["nodes"]
SIGMAS = load_file(DATA / "scheduler_nodes.safetensors")
# Numbers with an exponent are read as such here; the reference reads 1e-2 as 1 and -2.
DIFFERENT = {"ManualSigmas/2"}
CASES = [name for name in RECORDED if name not in DIFFERENT]


def run(name: str, **inputs):
    cls = nodes.NODE_CLASS_MAPPINGS[name]
    if hasattr(cls, "GET_SCHEMA"):
        return cls.execute(**inputs).result
    return getattr(cls(), cls.FUNCTION)(**inputs)


def named_sigmas(name: str) -> torch.Tensor:
    if name == "empty":
        return torch.empty(0)
    name, _, first = name.partition(" first ")
    sigmas = SIGMAS[f"{name}/out0"]
    return sigmas[: int(first)] if first else sigmas


@pytest.mark.parametrize("name", CASES)
def test_recorded_schedule(name):
    case = RECORDED[name]
    inputs = dict(case["args"])
    if "kind" in inputs:
        sampling = sampling_object(inputs.pop("kind"))
        inputs["model"] = SimpleNamespace(get_model_object=lambda name: {"model_sampling": sampling}[name])
    if case["node"] != "ManualSigmas" and "sigmas" in inputs:
        inputs["sigmas"] = named_sigmas(inputs["sigmas"])
    if inputs.get("latent") is not None:
        shape = inputs.pop("latent")
        if shape != "absent":
            inputs["latent"] = {"samples": torch.zeros(json.loads(shape))}
    outputs = run(case["node"], **inputs)
    for index, output in enumerate(outputs):
        expected = SIGMAS[f"{name}/out{index}"]
        if isinstance(output, float):
            assert output == pytest.approx(expected.item(), rel=1e-6)
        else:
            assert output.shape == expected.shape
            # A stretched schedule of one step divides by zero, in the reference too.
            assert torch.allclose(output, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_enough_schedules_were_recorded():
    assert len(CASES) > 500


def test_no_schedule_is_left_of_a_denoise_of_zero():
    for name, model_type in (("AlignYourStepsScheduler", "SD1"), ("OptimalStepsScheduler", "FLUX")):
        assert len(run(name, model_type=model_type, steps=5, denoise=0.0)[0]) == 0
    assert len(run("GITSScheduler", coeff=1.2, steps=5, denoise=0.0)[0]) == 0


def test_any_coefficient_of_gits_has_its_nearest_table():
    exact = run("GITSScheduler", coeff=1.25, steps=8, denoise=1.0)[0]
    for near in (1.24, 1.26, 1.25 + 1e-7):
        assert torch.equal(run("GITSScheduler", coeff=near, steps=8, denoise=1.0)[0], exact)


def test_manual_sigmas_understands_exponents():
    assert run("ManualSigmas", sigmas="1e-2, .5")[0].tolist() == pytest.approx([0.01, 0.5])


# --- samplers ---------------------------------------------------------------------------------------


def condition(seed: int) -> list:
    return [[torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(seed)), {}]]


POSITIVE, NEGATIVE = condition(1), condition(2)


def latent(**keys) -> dict:
    return {"samples": torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3)), **keys}


def ksampler(model, start, **changes):
    inputs = {
        "model": model, "seed": 5, "steps": 6, "cfg": 3.0, "sampler_name": "dpmpp_2m", "scheduler": "karras",
        "positive": POSITIVE, "negative": NEGATIVE, "latent_image": start, "denoise": 1.0,
    }  # fmt: skip
    with torch.inference_mode():
        return run("KSampler", **{**inputs, **changes})[0]


def advanced(model, start, **changes):
    inputs = {
        "model": model, "add_noise": "enable", "noise_seed": 5, "steps": 6, "cfg": 3.0, "sampler_name": "euler",
        "scheduler": "normal", "positive": POSITIVE, "negative": NEGATIVE, "latent_image": start,
        "start_at_step": 0, "end_at_step": 10000, "return_with_leftover_noise": "disable",
    }  # fmt: skip
    with torch.inference_mode():
        return run("KSamplerAdvanced", **{**inputs, **changes})[0]


@pytest.fixture(params=["eps", "flow3"])
def model(request):
    return patcher(request.param)


def test_all_ways_to_sample_agree(model):
    start = latent(batch_index=[4, 9])
    expected = ksampler(model, start)["samples"]
    sigmas = run("BasicScheduler", model=model, scheduler="karras", steps=6, denoise=1.0)[0]
    sampler = run("KSamplerSelect", sampler_name="dpmpp_2m")[0]
    with torch.inference_mode():
        custom, guess = run(
            "SamplerCustom", model=model, add_noise=True, noise_seed=5, cfg=3.0, positive=POSITIVE,
            negative=NEGATIVE, sampler=sampler, sigmas=sigmas, latent_image=start,
        )  # fmt: skip
        parts, _ = run(
            "SamplerCustomAdvanced",
            noise=run("RandomNoise", noise_seed=5)[0],
            guider=run("CFGGuider", model=model, positive=POSITIVE, negative=NEGATIVE, cfg=3.0)[0],
            sampler=sampler,
            sigmas=sigmas,
            latent_image=start,
        )
    assert torch.allclose(custom["samples"], expected, atol=1e-6)
    assert torch.allclose(parts["samples"], expected, atol=1e-6)
    # The last step ends without noise, so the last guess is the result.
    assert torch.allclose(guess["samples"], expected, atol=1e-3)
    assert custom["batch_index"] == [4, 9]


def test_two_samplers_in_a_row_do_what_one_does(model):
    whole = advanced(model, latent())
    first = advanced(model, latent(), end_at_step=3, return_with_leftover_noise="enable")
    both = advanced(model, first, add_noise="disable", start_at_step=3)
    assert torch.allclose(both["samples"], whole["samples"], atol=1e-5)
    assert not torch.allclose(first["samples"], whole["samples"], atol=1e-2)


def test_seeds_and_batch_numbers(model):
    start = latent(batch_index=[0, 1])
    assert torch.equal(ksampler(model, start)["samples"], ksampler(model, start)["samples"])
    assert not torch.equal(ksampler(model, start)["samples"], ksampler(model, start, seed=6)["samples"])
    same = {"samples": start["samples"][:1].repeat(2, 1, 1, 1), "batch_index": [3, 3]}
    result = ksampler(model, same)["samples"]
    assert torch.allclose(result[0], result[1], atol=1e-6)


def test_denoise_zero_gives_the_latent_back(model):
    start = latent()
    assert torch.allclose(ksampler(model, start, denoise=0.0)["samples"], start["samples"], atol=1e-5)


def test_a_mask_protects_the_rest(model):
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., 4:] = 1
    start = latent(noise_mask=mask)
    result = ksampler(model, start)["samples"]
    assert torch.allclose(result[..., :4], start["samples"][..., :4], atol=1e-4)
    assert not torch.allclose(result[..., 4:], start["samples"][..., 4:], atol=1e-1)


def test_sizes_that_were_only_meant_for_the_empty_latent_are_dropped(model):
    assert "downscale_ratio_spacial" not in ksampler(model, latent(downscale_ratio_spacial=8))


SOLVERS = [name for name in nodes.NODE_CLASS_MAPPINGS if name.startswith("Sampler") and "Custom" not in name]


@pytest.mark.parametrize("name", [n for n in SOLVERS if n != "SamplingPercentToSigma"])
def test_every_solver_node_gives_a_sampler_that_runs(name):
    model = patcher("eps")
    inputs = {}
    for key, spec in nodes.NODE_CLASS_MAPPINGS[name].INPUT_TYPES()["required"].items():
        options = spec[1] if len(spec) > 1 else {}
        inputs[key] = model if spec[0] == "MODEL" else options.get("default", options.get("options", [False])[0])
    (sampler,) = run(name, **inputs)
    sigmas = run("BasicScheduler", model=model, scheduler="normal", steps=5, denoise=1.0)[0]
    with torch.inference_mode():
        result, _ = run(
            "SamplerCustom", model=model, add_noise=True, noise_seed=5, cfg=3.0, positive=POSITIVE,
            negative=NEGATIVE, sampler=sampler, sigmas=sigmas, latent_image=latent(),
        )  # fmt: skip
    assert torch.isfinite(result["samples"]).all()
    assert result["samples"].std() < 6


def sample_with(guider):
    sigmas = run("BasicScheduler", model=patcher("eps"), scheduler="normal", steps=4, denoise=1.0)[0]
    with torch.inference_mode():
        return run(
            "SamplerCustomAdvanced",
            noise=run("RandomNoise", noise_seed=1)[0],
            guider=guider,
            sampler=run("KSamplerSelect", sampler_name="euler")[0],
            sigmas=sigmas,
            latent_image=latent(),
        )[0]["samples"]


def test_guiding_by_one_conditioning_is_a_guidance_of_one():
    basic = run("BasicGuider", model=patcher("eps"), conditioning=POSITIVE)[0]
    plain = run("CFGGuider", model=patcher("eps"), positive=POSITIVE, negative=NEGATIVE, cfg=1.0)[0]
    assert torch.allclose(sample_with(basic), sample_with(plain), atol=1e-6)


@pytest.mark.parametrize("style", ["regular", "nested"])
def test_two_equal_conditionings_guide_like_one(style):
    dual = run(
        "DualCFGGuider", model=patcher("eps"), cond1=POSITIVE, cond2=POSITIVE, negative=NEGATIVE, cfg_conds=2.0,
        cfg_cond2_negative=3.0, style=style,
    )[0]  # fmt: skip
    plain = run("CFGGuider", model=patcher("eps"), positive=POSITIVE, negative=NEGATIVE, cfg=3.0)[0]
    assert torch.allclose(sample_with(dual), sample_with(plain), atol=1e-5)


def test_two_conditionings_with_weights_of_one_follow_the_first():
    for style in ("regular", "nested"):
        dual = run(
            "DualCFGGuider", model=patcher("eps"), cond1=POSITIVE, cond2=condition(7), negative=NEGATIVE,
            cfg_conds=1.0, cfg_cond2_negative=1.0, style=style,
        )[0]  # fmt: skip
        basic = run("BasicGuider", model=patcher("eps"), conditioning=POSITIVE)[0]
        assert torch.allclose(sample_with(dual), sample_with(basic), atol=1e-5)


def test_no_noise_and_seeded_noise():
    start = latent(batch_index=[0, 1])
    assert not custom_sampling.NoNoise().generate_noise(start).any()
    noise = custom_sampling.SeededNoise(7).generate_noise(start)
    assert noise.shape == start["samples"].shape and 0.7 < noise.std() < 1.3


def test_add_noise_spans_the_schedule():
    model = patcher("eps")
    noise = custom_sampling.SeededNoise(7)
    start = latent()
    (result,) = run("AddNoise", model=model, noise=noise, sigmas=torch.tensor([10.0, 2.0]), latent_image=start)
    expected = start["samples"] + 8.0 * noise.generate_noise(start)
    assert torch.allclose(result["samples"], expected, atol=1e-4)
    assert run("AddNoise", model=model, noise=noise, sigmas=torch.empty(0), latent_image=start)[0] is start


@pytest.mark.parametrize(
    ("name", "inputs", "shift"),
    [
        ("ModelSamplingSD3", {"shift": 5.0}, 5.0),
        ("ModelSamplingAuraFlow", {"shift": 2.0}, 2.0),
        ("ModelSamplingFlux", {"max_shift": 1.15, "base_shift": 0.5, "width": 1024, "height": 1024}, 1.15),
        ("ModelSamplingFlux", {"max_shift": 1.15, "base_shift": 0.5, "width": 512, "height": 512}, 0.63),
    ],
)
def test_shifted_noise_levels(name, inputs, shift):
    model = patcher("flow3")
    (patched,) = run(name, model=model, **inputs)
    sampling = patched.get_model_object("model_sampling")
    assert sampling.shift == pytest.approx(shift)
    assert model.get_model_object("model_sampling") is not sampling
    kinds = {"ModelSamplingSD3": 1000.0, "ModelSamplingAuraFlow": 1.0}
    if name in kinds:
        middle = 0.5 * kinds[name]
        expected = shift * 0.5 / (1 + (shift - 1) * 0.5)
        assert sampling.sigma(torch.tensor(middle)).item() == pytest.approx(expected, rel=1e-5)


def test_rescaled_guidance():
    model = patcher("eps")
    (nothing,) = run("RescaleCFG", model=model, multiplier=0.0)
    assert torch.allclose(ksampler(nothing, latent())["samples"], ksampler(model, latent())["samples"], atol=1e-3)
    (full,) = run("RescaleCFG", model=model, multiplier=1.0)
    strong = ksampler(model, latent(), cfg=12.0)["samples"]
    rescaled = ksampler(full, latent(), cfg=12.0)["samples"]
    assert torch.isfinite(rescaled).all() and not torch.allclose(rescaled, strong, atol=1e-2)


# --- the calculator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9", "2**5000", "1 << 99999", "(1 << 10000) * 2 ** 3999 * (1 << 10000) ** 9",
        "().__class__", "a.real", "[1]*9", "'x'*9", "lambda: 1", "f'{a}'", "a := 3", "sum(x for x in values)",
        "open('f')", "__import__('os')", "getattr(a, 'real')", "max(*values)", "max(a, key=abs)", "a = 1",
        "import os", "(" * 500 + "1" + ")" * 500, "-" * 4000 + "1", "1" * 5000, "",
    ],
)  # fmt: skip
def test_the_calculator_refuses(text):
    with pytest.raises((expression.ExpressionError, OverflowError)):
        expression.evaluate(text, {"a": 2, "values": [1, 2]})


def test_the_calculator_does_not_evaluate_what_it_need_not():
    assert expression.evaluate("1 or 1/0", {}) == 1
    assert expression.evaluate("0 and 1/0", {}) == 0
    assert expression.evaluate("a if a else 1/0", {"a": 3}) == 3
