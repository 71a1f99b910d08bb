"""Guidance and solver nodes against recorded results, on the toy model they were recorded with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import comfy.samplers
import nodes
from tests.recorded_files import load_json, load_tensors
from tests.sampling.toy import patcher

DATA = Path(__file__).parents[1] / "data" / "goldens"
STEPS = load_json(DATA / "conditioning.json")
STEP_TENSORS = load_tensors(DATA / "conditioning.safetensors")
RUNS = load_json(DATA / "samplers.json")
RUN_RESULTS = load_tensors(DATA / "samplers.safetensors")
RUN_INPUTS = load_tensors(DATA / "sampler_inputs.safetensors")
KINDS = {"eps": "eps", "eps_lowsigma": "eps", "flow": "flow3"}
NUMBER = re.compile(r"\d+\.?\d*")


def run(name: str, **inputs):
    cls = nodes.NODE_CLASS_MAPPINGS[name]
    if hasattr(cls, "GET_SCHEMA"):
        return cls.execute(**inputs).result[0]
    return getattr(cls(), cls.FUNCTION)(**inputs)[0]


def conditioning(name: str) -> list:
    return [[STEP_TENSORS[f"cond/{name}"], {"pooled_output": STEP_TENSORS[f"cond/{name}_pooled"]}]]


A, B, C, NEGATIVE = (conditioning(name) for name in ("A", "B", "C", "NEG"))
# Recorded name -> (node, names of the numbers in it, fixed inputs).
MODEL_NODES = {
    "RescaleCFG": ("RescaleCFG", ["multiplier"], {}),
    "CFGZeroStar": ("CFGZeroStar", [], {}),
    "CFGNorm": ("CFGNorm", ["strength"], {}),
    "CFGNorm_pre": ("CFGNorm", ["strength"], {"pre_cfg": True}),
    "Mahiro": ("Mahiro", [], {}),
    "EpsilonScaling": ("Epsilon Scaling", ["scaling_factor"], {}),
    "VideoLinearCFG": ("VideoLinearCFGGuidance", ["min_cfg"], {}),
    "VideoTriangleCFG": ("VideoTriangleCFGGuidance", ["min_cfg"], {}),
    "CFGOverride": ("CFGOverride", ["cfg", "start_percent", "end_percent"], {}),
    "APG_eta": ("APG", ["eta", "norm_threshold", "momentum"], {}),
}


def recorded_node(spec: str) -> str | None:
    """Name in MODEL_NODES of a recorded case, None for cases of other nodes."""
    if "_then_" in spec:
        return None
    return re.match(r"[A-Za-z]+(_pre|_eta)?", spec)[0]


def make_guider(kind: str, spec: str):
    model = patcher(KINDS[kind])
    numbers = [float(number) for number in NUMBER.findall(spec)]
    if spec.startswith("PerpNegGuider"):
        inputs = {"positive": A, "negative": NEGATIVE, "empty_conditioning": C, "cfg": 7.0, "neg_scale": numbers[0]}
        return run("PerpNegGuider", model=model, **inputs)
    if spec.startswith("DualCFG"):
        inputs = {"cond1": A, "cond2": B, "negative": NEGATIVE, "style": spec.split("_")[1]}
        weights = {"cfg_conds": numbers[0], "cfg_cond2_negative": numbers[1]}
        return run("DualCFGGuider", model=model, **inputs, **weights)
    if spec == "BasicGuider":
        return run("BasicGuider", model=model, conditioning=A)
    node, names, fixed = MODEL_NODES[recorded_node(spec)]
    model = run(node, model=model, **dict(zip(names, numbers)), **fixed)
    return run("CFGGuider", model=model, positive=A, negative=NEGATIVE, cfg=7.0)


def one_prediction(guider, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """What the guided model predicts for x."""
    seen = []

    def solver(model, start, sigmas, extra_args=None, callback=None, disable=None):
        seen.append(model(x, x.new_full(x.shape[:1], sigma), **(extra_args or {})))
        return start

    empty = torch.zeros_like(x)
    with torch.inference_mode():
        guider.sample(empty, empty, comfy.samplers.KSAMPLER(solver), torch.tensor([sigma, 0.0]), seed=0)
    return seen[0]


GUIDERS = ("PerpNegGuider", "DualCFG", "BasicGuider")
GUIDED = [
    key
    for key in STEPS
    if key.startswith("step/guid/")
    and (key.split("/", 4)[4].startswith(GUIDERS) or recorded_node(key.split("/", 4)[4]) in MODEL_NODES)
]


@pytest.mark.parametrize("key", GUIDED)
def test_recorded_guidance(key):
    _, _, kind, _, spec = key.split("/", 4)
    case = STEPS[key]
    got = one_prediction(make_guider(kind, spec), STEP_TENSORS[f"input/{case['x']}"], case["sigma"])
    assert torch.allclose(got, STEP_TENSORS[f"{key}/denoised"], atol=2e-5)


def test_enough_guidance_was_recorded():
    assert len(GUIDED) > 80
    assert {recorded_node(key.split("/", 4)[4]) for key in GUIDED} >= set(MODEL_NODES)


# --- solver nodes -----------------------------------------------------------------------------------

# Node -> (pattern of the options in the recorded name, their input names).
SOLVER_OPTIONS = {
    "SamplerEulerAncestral": (r"eta(.+)", ["eta"]),
    "SamplerEulerAncestralCFGPP": (r"eta(.+)", ["eta"]),
    "SamplerDPMPP_2S_Ancestral": (r"eta(.+)", ["eta"]),
    "SamplerDPMPP_SDE": (r"eta(.+)_r(.+)", ["eta", "r"]),
    "SamplerDPMPP_2M_SDE": (r"(\w+)_eta(.+)", ["solver_type", "eta"]),
    "SamplerDPMPP_3M_SDE": (r"eta(.+)", ["eta"]),
    "SamplerER_SDE": (r"(.+)_stage(.)_eta(.+)", ["solver_type", "max_stage", "eta"]),
    "SamplerSEEDS2": (r"(\w+?_\d)_eta(.+)_r(.+)", ["solver_type", "eta", "r"]),
    "SamplerSASolver": (
        r"eta(.+)_p(.)c(.)_pece(.)_simple(.)",
        ["eta", "predictor_order", "corrector_order", "use_pece", "simple_order_2"],
    ),
    "SamplerLMS": (r"order(.)", ["order"]),
    "SamplerEulerCFGpp": (r"(\w+)", ["version"]),
    "SamplerLCM": (r"s(.+)_e(.+)_clip(.+)", ["s_noise", "s_noise_end", "noise_clip_std"]),
}
SOLVED = [key for key in RUNS if re.fullmatch(rf"custom/[^/]+/({'|'.join(SOLVER_OPTIONS)})/[^/]+/cfg5/seed42", key)]


def solver_inputs(node: str, options: str, model) -> dict:
    declared = nodes.NODE_CLASS_MAPPINGS[node].INPUT_TYPES()["required"]
    pattern, names = SOLVER_OPTIONS[node]
    kinds = {"INT": int, "FLOAT": float, "COMBO": str, "BOOLEAN": lambda text: text == "1"}
    inputs = {
        name: kinds[declared[name][0]](text) for name, text in zip(names, re.fullmatch(pattern, options).groups())
    }
    fixed = {
        "s_noise": 0.9, "noise_device": "cpu", "model": model, "sde_start_percent": 0.2, "sde_end_percent": 0.8,
    }  # fmt: skip
    return {**{key: value for key, value in fixed.items() if key in declared}, **inputs}


@pytest.mark.parametrize("key", SOLVED)
def test_recorded_solver(key):
    _, kind, node, options, *_ = key.split("/")
    case = RUNS[key]
    if "error" in case:
        pytest.skip("the reference fails")
    model = patcher(kind)
    positive, negative = ([[RUN_INPUTS[name], {}]] for name in ("pos", "neg"))
    with torch.inference_mode():
        result = nodes.NODE_CLASS_MAPPINGS["SamplerCustom"].execute(
            model=model, add_noise=True, noise_seed=case["seed"], cfg=case["cfg"], positive=positive,
            negative=negative, sampler=run(node, **solver_inputs(node, options, model)),
            sigmas=torch.tensor(case["sigmas"]), latent_image={"samples": RUN_INPUTS[f"latent/{case['latent']}"]},
        ).result[0]  # fmt: skip
    assert torch.allclose(result["samples"], RUN_RESULTS[key], atol=2e-4)


def test_enough_solvers_were_recorded():
    assert len(SOLVED) > 100
    assert {key.split("/")[2] for key in SOLVED} == set(SOLVER_OPTIONS)


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize(("kind", "scheduler"), [("eps", "karras"), ("flow3", "simple")])
def test_recorded_differential_diffusion(kind, scheduler, strength):
    key = f"{kind}/euler/{scheduler}/cfg5/d1/seed42/diffdiff_strength{strength:g}"
    model = run("DifferentialDiffusion", model=patcher(kind), strength=strength)
    latent = {"samples": RUN_INPUTS["latent/a"], "noise_mask": RUN_INPUTS["mask/grad"]}
    with torch.inference_mode():
        result = run(
            "KSampler", model=model, seed=42, steps=8, cfg=5.0, sampler_name="euler", scheduler=scheduler,
            positive=[[RUN_INPUTS["pos"], {}]], negative=[[RUN_INPUTS["neg"], {}]], latent_image=latent, denoise=1.0,
        )  # fmt: skip
    assert torch.allclose(result["samples"], RUN_RESULTS[key], atol=2e-4)


@pytest.mark.parametrize(("kind", "x"), [("eps", "x16"), ("flow", "x16")])
def test_an_operation_on_the_guidance(kind, x):
    """Twice the difference of the predictions is twice the guidance; without a negative the positive is operated on."""
    model = patcher(KINDS[kind])
    sigma = 0.5

    def guider(operation, cfg):
        patched = model if operation is None else run("LatentApplyOperationCFG", model=model, operation=operation)
        return run("CFGGuider", model=patched, positive=A, negative=NEGATIVE, cfg=cfg)

    def twice(latent):
        return 2 * latent

    start = STEP_TENSORS[f"input/{x}"]
    got = one_prediction(guider(twice, 3.0), start, sigma)
    assert torch.allclose(got, one_prediction(guider(None, 6.0), start, sigma), atol=1e-4)
    alone = one_prediction(guider(twice, 1.0), start, sigma)
    assert torch.allclose(alone, 2 * one_prediction(guider(None, 1.0), start, sigma), atol=1e-5)
