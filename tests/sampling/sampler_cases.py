"""Running the cases of samplers.json on the toy model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import toy
from torch import Tensor

import comfy.sample
import comfy.samplers
import nodes.differential_diffusion
from comfy.k_diffusion import sampling as k_diffusion
from comfy.sampling.solvers.er_sde import noise_scaler_for
from comfy.sampling.solvers.euler import sample_euler_cfg_pp_alternative
from comfy.sampling.solvers.sa_solver import get_tau_interval_func

ADAPTIVE_OPTIONS: dict[str, dict[str, float]] = {
    "order2": {"order": 2},
    "order3_eta0.7": {"eta": 0.7},
    # Not in the recording; found from the thirty sigmas it evaluates, which no other round numbers give.
    "order3_tight": {"rtol": 0.01, "atol": 0.001, "h_init": 0.02, "pcoeff": 0.1, "icoeff": 0.9, "dcoeff": 0.05},
}


class Outcome(NamedTuple):
    """samples; the model's calls (sigma, rows, cond_or_uncond); the callbacks (step, x0, x)."""

    samples: Tensor
    calls: list[tuple[float, int, list[int]]]
    callbacks: list[tuple[int, Tensor, Tensor]]


def conditioning() -> tuple[list, list]:
    inputs = toy.tensors("sampler_inputs")
    return [[inputs["pos"], {}]], [[inputs["neg"], {}]]


def _mask(key: str) -> Tensor | None:
    inputs = toy.tensors("sampler_inputs")
    if "mask_pix64" in key or key.endswith("/mask"):
        return inputs["mask/pix64"]
    return inputs["mask/grad"] if "b2_mask" in key or "diffdiff" in key else None


def latent_of(key: str, facts: dict[str, Any]) -> Tensor:
    if isinstance(facts["latent"], str):
        return toy.tensors("sampler_inputs")[f"latent/{facts['latent']}"]
    return toy.tensors("samplers")[key.replace("two_stage_second", "two_stage_first")]


def run(key: str, noise_factor: float = 1.0) -> Outcome:
    """A case with a named sampler and scheduler.

    noise_factor: what the first noise is multiplied with, to see how much hangs on its last digit.
    """
    facts = toy.meta("samplers")[key]
    kind = key.split("/")[0]
    patcher = toy.patcher("eps" if kind == "edge" else kind).clone()
    if "diffdiff" in key:
        patcher = nodes.differential_diffusion.DifferentialDiffusion.execute(
            patcher, float(key.split("strength")[1])
        ).args[0]
    patcher.model.calls.clear()
    latent = latent_of(key, facts)
    no_noise = facts.get("disable_noise", False)
    noise = torch.zeros_like(latent) if no_noise else comfy.sample.prepare_noise(latent, facts["seed"])
    positive, negative = conditioning()
    callbacks: list[tuple[int, Tensor, Tensor]] = []
    samples = comfy.sample.sample(
        patcher,
        noise * noise_factor,
        facts["steps"],
        facts["cfg"],
        facts["sampler"],
        facts["scheduler"],
        positive,
        negative,
        latent,
        denoise=facts["denoise"],
        disable_noise=no_noise,
        start_step=facts.get("start_step"),
        last_step=facts.get("last_step"),
        force_full_denoise=facts.get("force_full_denoise", False),
        noise_mask=_mask(key),
        callback=lambda step, x0, x, total: callbacks.append((step, x0, x)),
        seed=facts["seed"],
    )
    return Outcome(samples, list(patcher.model.calls), callbacks)


def sampler_of_node(key: str, percent_to_sigma: Callable[[float], float]) -> comfy.samplers.KSAMPLER:
    """The SAMPLER of a `custom/<kind>/<node>/<options>` case."""
    _, _, node, options, *_ = key.split("/")

    def number(name: str) -> float:
        return float(re.search(name + r"([\d.]+)", options)[1])

    def make(function: Callable[..., Tensor], **extra: Any) -> comfy.samplers.KSAMPLER:
        return comfy.samplers.KSAMPLER(function, extra)

    def noisy(function: Callable[..., Tensor], **extra: Any) -> comfy.samplers.KSAMPLER:
        return make(function, eta=number("eta"), s_noise=0.9, **extra)

    match node:
        case "SamplerEulerAncestral":
            return noisy(k_diffusion.sample_euler_ancestral)
        case "SamplerEulerAncestralCFGPP":
            return noisy(k_diffusion.sample_euler_ancestral_cfg_pp)
        case "SamplerDPMPP_2S_Ancestral":
            return noisy(k_diffusion.sample_dpmpp_2s_ancestral)
        case "SamplerDPMPP_SDE":
            return noisy(k_diffusion.sample_dpmpp_sde, r=number("_r"))
        case "SamplerDPMPP_2M_SDE":
            return noisy(k_diffusion.sample_dpmpp_2m_sde, solver_type=options.split("_")[0])
        case "SamplerDPMPP_3M_SDE":
            return noisy(k_diffusion.sample_dpmpp_3m_sde)
        case "SamplerSEEDS2":
            return noisy(k_diffusion.sample_seeds_2, r=number("_r"), solver_type=options[:5])
        case "SamplerER_SDE":
            scaler = noise_scaler_for(options.split("_")[0], number("eta"))
            stage = int(number("stage"))
            return make(k_diffusion.sample_er_sde, noise_scaler=scaler, max_stage=stage, s_noise=0.9)
        case "SamplerSASolver":
            predictor, corrector, pece, simple = (
                int(n) for n in re.findall(r"[pce](\d)", options.replace("simple", "_e"))[-4:]
            )
            tau = get_tau_interval_func(percent_to_sigma(0.2), percent_to_sigma(0.8), number("eta"))
            return make(
                k_diffusion.sample_sa_solver,
                tau_func=tau,
                s_noise=0.9,
                predictor_order=predictor,
                corrector_order=corrector,
                use_pece=bool(pece),
                simple_order_2=bool(simple),
            )
        case "SamplerLMS":
            return make(k_diffusion.sample_lms, order=int(number("order")))
        case "SamplerDPMAdaptative":
            return comfy.samplers.ksampler("dpm_adaptive", {"s_noise": 0.9, **ADAPTIVE_OPTIONS[options]})
        case "SamplerLCM":
            return make(k_diffusion.sample_lcm, s_noise=0.8, s_noise_end=0.4, noise_clip_std=2.0)
        case "SamplerEulerCFGpp":
            regular = k_diffusion.sample_euler_cfg_pp
            return make(regular if options == "regular" else sample_euler_cfg_pp_alternative)
    if "_churn20" in node:
        function = getattr(k_diffusion, "sample_" + node.split("_churn")[0])
        return make(function, s_churn=20.0, s_tmin=0.05, s_tmax=10.0, s_noise=1.003)
    return comfy.samplers.sampler_object(re.sub("_(flipped|open_end)$", "", node))


def run_custom(key: str) -> Outcome:
    """A case with a SAMPLER and a list of sigmas."""
    facts = toy.meta("samplers")[key]
    patcher = toy.patcher(key.split("/")[1]).clone()
    patcher.model.calls.clear()
    sampler = sampler_of_node(key, patcher.get_model_object("model_sampling").percent_to_sigma)
    latent = latent_of(key, facts)
    noise = comfy.sample.prepare_noise(latent, facts["seed"])
    positive, negative = conditioning()
    samples = comfy.sample.sample_custom(
        patcher,
        noise,
        facts["cfg"],
        sampler,
        torch.tensor(facts["sigmas"]),
        positive,
        negative,
        latent,
        seed=facts["seed"],
    )
    return Outcome(samples, list(patcher.model.calls), [])
