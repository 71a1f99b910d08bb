"""The traps of goldens, section 8, and the promises of docs/sampling.md, each by its name."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
import sampler_cases
import torch
import toy
from torch import Tensor

import comfy.interrupt
import comfy.model_patcher
import comfy.sample
import comfy.samplers
from comfy.k_diffusion import sampling as k_diffusion
from comfy.sampling import solvers
from comfy.sampling.solvers import multistep
from comfy.text_encoders.clip_encoder import encode_weighted
from comfy.text_encoders.sd1 import SD1Tokenizer

INPUTS = toy.tensors("sampler_inputs")
POSITIVE, NEGATIVE = sampler_cases.conditioning()


def run(kind: str, sampler: Any, sigmas: Tensor, seed: int = 0, cfg: float = 5.0, **more: Any) -> Tensor:
    latent = more.pop("latent_image", torch.zeros(1, 4, 8, 8))
    noise = more.pop("noise", comfy.sample.prepare_noise(latent, seed))
    if isinstance(sampler, str):
        sampler = comfy.samplers.sampler_object(sampler)
    patcher = more.pop("patcher", toy.patcher(kind))
    patcher.model.calls.clear()
    return comfy.sample.sample_custom(
        patcher, noise, cfg, sampler, sigmas, POSITIVE, NEGATIVE, latent, seed=seed, **more
    )


def schedule(kind: str, scheduler: str = "karras", steps: int = 4) -> Tensor:
    return comfy.samplers.calculate_sigmas(toy.patcher(kind).get_model_object("model_sampling"), scheduler, steps)


class HalfModel(toy.ToyModel):
    """Computes in half precision, as big models do, and gives float32."""

    seen: set[tuple[torch.dtype, torch.dtype]]

    def apply_model(self, x, t, c_crossattn, transformer_options, **kwargs):
        self.seen.add((x.dtype, t.dtype))
        return toy.denoise(x.half(), t.half(), c_crossattn.half(), self.flow).float()

    def get_dtype(self):
        return torch.float16


def test_1_initial_noise_is_drawn_on_the_cpu_in_float32():
    """Whatever the latent is; the seed alone decides."""
    expected = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(7))
    for latent in (torch.zeros(1, 4, 8, 8), torch.zeros(1, 4, 8, 8, dtype=torch.float16)):
        noise = comfy.sample.prepare_noise(latent, 7)
        assert noise.device.type == "cpu" and torch.equal(noise, expected.to(latent.dtype))
    on_device = comfy.sample.prepare_noise(torch.zeros(1, 4, 8, 8, device="meta"), 7)
    assert torch.equal(on_device, expected)


def test_1_noise_of_steps_is_drawn_on_the_device_and_from_seed_plus_one_on_the_cpu(monkeypatch):
    seeds = []

    class Recorder:
        def __init__(self, device):
            self.device = torch.device(device).type

        def manual_seed(self, seed):
            seeds.append((self.device, seed))

    monkeypatch.setattr(torch, "Generator", Recorder)
    for device in ("cpu", "meta"):
        k_diffusion.default_noise_sampler(torch.zeros(1, device=device), seed=7)
    assert seeds == [("cpu", 8), ("meta", 7)]


def test_2_sampling_is_float32_whatever_the_model_computes_in():
    model = HalfModel("eps")
    model.seen = set()
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    latent = torch.zeros(1, 4, 8, 8, dtype=torch.float16)
    result = run("eps", "dpmpp_2m", schedule("eps"), patcher=patcher, latent_image=latent)
    assert model.seen == {(torch.float32, torch.float32)}
    assert result.dtype == torch.float32


def test_3_full_noise_has_a_tolerance():
    """`normal` starts above sigma_max by a rounding, karras below: both are full noise."""
    model = toy.patcher("eps").model
    wrapped = type("Wrapped", (), {"inner_model": model})()
    sampler = comfy.samplers.Sampler()
    for scheduler in ("normal", "karras", "simple"):
        assert sampler.max_denoise(wrapped, schedule("eps", scheduler))
    assert not sampler.max_denoise(wrapped, schedule("eps")[1:])


@pytest.mark.parametrize("name", ["uni_pc", "uni_pc_bh2"])
def test_4_uni_pc_writes_into_its_schedule_but_not_into_the_callers(name):
    sigmas = schedule("flow3", "simple", 6)
    before = sigmas.clone()
    run("flow3", name, sigmas)
    assert torch.equal(sigmas, before)

    own = sigmas.clone()
    solvers.SAMPLERS[name].function(lambda x, sigma, **kwargs: x * 0.5, torch.ones(1, 4, 2, 2), own)
    assert own[-1] == pytest.approx(0.001)


def test_4_force_full_denoise_leaves_the_schedule_alone():
    sampler = comfy.samplers.KSampler(toy.patcher("eps"), 6, "cpu", "euler", "karras")
    before = sampler.sigmas.clone()
    latent = INPUTS["latent/a"]
    sampler.sample(INPUTS["noise/b1/seed0"], POSITIVE, NEGATIVE, 5.0, latent, 0, 3, force_full_denoise=True)
    assert torch.equal(sampler.sigmas, before)


def test_5_the_brownian_path_spans_the_original_sigmas(monkeypatch):
    spans = []

    class Recorder(k_diffusion.BrownianTreeNoiseSampler):
        def __init__(self, x, sigma_min, sigma_max, **kwargs):
            spans.append((sigma_min, sigma_max))
            super().__init__(x, sigma_min, sigma_max, **kwargs)

    monkeypatch.setattr(k_diffusion, "BrownianTreeNoiseSampler", Recorder)
    sigmas = schedule("flow3", "simple", 4)
    run("flow3", "dpmpp_2m_sde", sigmas)
    assert spans == [(sigmas[-2].item(), 1.0)]
    first_evaluated = toy.patcher("flow3").model.calls[0][0]
    assert first_evaluated < 1.0


@pytest.mark.parametrize("name", [n for n in solvers.SAMPLERS if n.endswith("cfg_pp")])
def test_6_cfg_pp_evaluates_the_negative_at_scale_one(name):
    run("eps", name, schedule("eps"), cfg=1.0)
    assert all(order == [1, 0] for _, _, order in toy.patcher("eps").model.calls)
    run("eps", "euler", schedule("eps"), cfg=1.0)
    assert all(order == [0] for _, _, order in toy.patcher("eps").model.calls)


def test_7_ddim_is_euler_except_under_a_mask():
    sigmas, latent = schedule("eps"), INPUTS["latent/a"]
    assert torch.equal(run("eps", "ddim", sigmas), run("eps", "euler", sigmas))
    mask = INPUTS["mask/pix64"]
    with_mask = {n: run("eps", n, sigmas, latent_image=latent, noise_mask=mask) for n in ("ddim", "euler")}
    assert not torch.equal(with_mask["ddim"], with_mask["euler"])


@pytest.mark.parametrize("name", ["dpm_fast", "dpm_adaptive"])
def test_8_dpm_solvers_see_only_the_ends_of_a_schedule(name):
    sigmas = schedule("eps", steps=6)
    bent = sigmas.clone()
    bent[2:4] *= 0.9
    assert torch.equal(run("eps", name, sigmas), run("eps", name, bent))


@pytest.mark.parametrize("i", [3, 4, 5])
def test_9_coefficients_of_multistep_methods_are_exact(i):
    """Sums over many points in double precision for the integrals: 5 digits are the least they need."""
    sigmas = schedule("eps", steps=8).tolist()
    points = np.linspace(sigmas[i], sigmas[i + 1], 100_001)
    for j in range(4):
        others = [k for k in range(4) if k != j]
        basis = np.prod([(points - sigmas[i - k]) / (sigmas[i - j] - sigmas[i - k]) for k in others], axis=0)
        integral = (basis[1:] + basis[:-1]).sum() / 2 * (points[1] - points[0])
        assert multistep.linear_multistep_coeff(4, sigmas, i, j) == pytest.approx(integral, rel=1e-7)
    process = multistep._vp_time()
    times = np.array(process.times(sigmas[i - 2 : i + 2]))
    points = np.linspace(times[-2], times[-1], 10_000)
    for j, got in enumerate(multistep.deis_coefficients(sigmas, i, 3)):
        past = times[-2::-1]
        basis = np.prod([(points - past[k]) / (past[j] - past[k]) for k in range(3) if k != j], axis=0)
        known = (process.sigma_slope(points) * basis).sum() * (times[-1] - times[-2]) / 10_000
        assert got == pytest.approx(known, rel=1e-7)


def test_9_quantiles_of_the_beta_scheduler_are_double():
    """In float32 the last ones are others: 1 - i/n loses its digits near 0, where the distribution is steep."""
    from scipy.stats import beta

    table = toy.patcher("eps").model.model_sampling.sigmas
    exact = beta.ppf(1 - np.arange(1000) / 1000, 0.6, 0.6)
    places = np.rint(exact * (len(table) - 1))
    kept = [int(p) for i, p in enumerate(places) if i == 0 or p != places[i - 1]]
    got = comfy.samplers.beta_scheduler(toy.patcher("eps").model.model_sampling, 1000)
    assert torch.equal(got[:-1], table[kept]) and got[-1] == 0


def test_10_the_protected_part_stays_and_is_noised_with_the_first_noise():
    latent, mask = INPUTS["latent/a"], INPUTS["mask/pix64"]
    result = run("eps", "euler", schedule("eps"), latent_image=latent, noise_mask=mask)
    protected = torch.nn.functional.interpolate(mask, size=(8, 8), mode="bilinear").expand_as(latent) == 0
    assert protected.any()
    assert toy.difference(result[protected], latent[protected]) <= 1e-6


def test_11_an_empty_schedule_returns_the_latent():
    latent = INPUTS["latent/a"]
    result = run("eps", "euler", torch.FloatTensor([]), latent_image=latent)
    assert result is latent or torch.equal(result, latent)
    assert toy.patcher("eps").model.calls == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A PHOTO of a CAT", "a photo of a cat"),
        ("CAFE\u0301", "caf\u00e9"),  # a letter and its accent, or both in one sign
        ("\u00c5ngstr\u00f6m", "\u00e5ngstr\u00f6m"),
        ("two \t\n words", "two words"),
    ],
)
def test_12_clip_lowers_letters_and_composes_signs(one, other):
    tokenize = SD1Tokenizer().tokenize_with_weights
    assert tokenize(one) == tokenize(other)


class Squares:
    """An encoder that is not linear; `rows` are the tokens it was given."""

    special_tokens = {"start": 1, "end": 2, "pad": 0}

    def encode(self, rows):
        self.rows = rows
        return torch.tensor(rows, dtype=torch.float32).square().unsqueeze(-1), None


def test_13_weights_act_on_what_the_encoder_gives():
    """Away from the empty prompt's value at the same place; tokens go in unweighted."""
    encoder = Squares()
    weights = [1.0, 1.5, 0.5, -1.0]
    cond, _ = encode_weighted(encoder, [list(zip([1, 5, 7, 2], weights))])
    assert encoder.rows == [[1, 5, 7, 2], [1, 2, 0, 0]]
    empty = [1.0, 4.0, 0.0, 0.0]
    expected = [e + w * (v - e) for v, e, w in zip([1.0, 25.0, 49.0, 4.0], empty, weights)]
    assert cond.dtype == torch.float32 and cond.flatten().tolist() == expected


def test_13_unweighted_prompts_need_no_empty_one():
    encoder = Squares()
    encode_weighted(encoder, [[(1, 1.0), (5, 1.0), (2, 1.0)]])
    assert encoder.rows == [[1, 5, 2]]


def test_every_trap_has_a_test():
    named = {int(name.split("_")[1]) for name in globals() if re.match(r"test_\d+_", name)}
    assert named == set(range(1, 14))


@pytest.mark.parametrize("name", solvers.SAMPLERS)
def test_inputs_are_left_unchanged(name):
    sigmas, latent = schedule("eps", steps=5), INPUTS["latent/a"].clone()
    noise = INPUTS["noise/b1/seed42"].clone()
    copies = [t.clone() for t in (sigmas, latent, noise)]
    run("eps", name, sigmas, latent_image=latent, noise=noise, seed=42)
    assert all(torch.equal(a, b) for a, b in zip((sigmas, latent, noise), copies))


def test_an_interrupt_is_noticed_within_a_step():
    def callback(step, x0, x, total):
        comfy.interrupt.interrupt_current_processing()

    with pytest.raises(comfy.interrupt.InterruptProcessingException):
        run("eps", "euler", schedule("eps", steps=8), callback=callback)
    assert len(toy.patcher("eps").model.calls) == 1
    assert not comfy.interrupt.processing_interrupted()
    run("eps", "euler", schedule("eps"))  # and the model can be used again


def test_packs_can_replace_the_noise_of_steps(monkeypatch):
    calls = []

    def silent(x, seed=None):
        calls.append(seed)
        return lambda sigma, sigma_next: torch.zeros_like(x)

    sigmas = schedule("eps")
    usual = run("eps", "euler_ancestral", sigmas, seed=7)
    monkeypatch.setattr(k_diffusion, "default_noise_sampler", silent)
    assert not torch.equal(run("eps", "euler_ancestral", sigmas, seed=7), usual)
    assert calls == [7]


def test_packs_can_add_a_sampler(monkeypatch):
    def sample_halving(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return model(x, sigmas[:1].expand(x.shape[0]), **(extra_args or {})) / 2

    monkeypatch.setattr(k_diffusion, "sample_halving", sample_halving, raising=False)
    sampler = comfy.samplers.ksampler("halving")
    assert sampler.sampler_function is sample_halving
    assert run("eps", sampler, schedule("eps")).shape == (1, 4, 8, 8)


def test_solvers_are_where_packs_import_them_from():
    for name in comfy.samplers.KSAMPLER_NAMES:
        function = getattr(k_diffusion, f"sample_{name}")
        parameters = list(inspect.signature(function).parameters)
        expected = ["model", "x", "sigma_min"] if name in ("dpm_fast", "dpm_adaptive") else ["model", "x", "sigmas"]
        assert parameters[:3] == expected, name
        assert {"extra_args", "callback", "disable"} <= set(parameters), name


def test_wrappers_go_around_every_stage():
    from comfy.patcher_extension import WrappersMP, add_wrapper_with_key

    patcher = toy.patcher("eps").clone()
    order: list[str] = []

    def wrapper(stage: str):
        def wrap(executor, *args, **kwargs):
            order.append(stage)
            return executor(*args, **kwargs)

        return wrap

    stages = [
        WrappersMP.OUTER_SAMPLE,
        WrappersMP.PREPARE_SAMPLING,
        WrappersMP.SAMPLER_SAMPLE,
        WrappersMP.PREDICT_NOISE,
        WrappersMP.CALC_COND_BATCH,
    ]
    for stage in stages:
        add_wrapper_with_key(stage, "test", wrapper(stage), patcher.model_options, is_model_options=True)
    sigmas = schedule("eps", steps=2)
    wrapped = run("eps", "euler", sigmas, patcher=patcher)
    assert order == [*stages[:3], *stages[3:], *stages[3:]]
    assert torch.equal(wrapped, run("eps", "euler", sigmas))


def test_model_function_wrapper_sees_the_batch():
    patcher = toy.patcher("eps").clone()
    seen = []

    def wrapper(apply_model, args):
        seen.append((args["input"].shape[0], args["timestep"].shape[0], args["cond_or_uncond"]))
        return apply_model(args["input"], args["timestep"], **args["c"])

    patcher.model_options["model_function_wrapper"] = wrapper
    sigmas = schedule("eps", steps=2)
    assert torch.equal(run("eps", "euler", sigmas, patcher=patcher), run("eps", "euler", sigmas))
    assert seen == [(2, 2, [1, 0])] * 2


def test_low_memory_splits_the_batch(monkeypatch):
    import comfy.model_management

    sigmas = schedule("eps", steps=2)
    usual = run("eps", "euler", sigmas)
    monkeypatch.setattr(comfy.model_management, "get_free_memory", lambda *args, **kwargs: 300.0)
    split = run("eps", "euler", sigmas)
    assert [rows for _, rows, _ in toy.patcher("eps").model.calls] == [1, 1, 1, 1]
    assert toy.difference(split, usual) <= 1e-5
