"""DPM-Solver++ for the reverse SDE, with Brownian noise (Lu et al. 2022, arXiv:2211.01095, appendix).

`lam` runs from noise to data; with eta > 0 each step goes further, h(1+eta), and noise makes up for it.
The `_gpu` names draw the Brownian path on the latent's device, the others on the CPU for any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy.sampling.solvers.common import (
    Callback,
    LogSNR,
    ModelFunction,
    Run,
    UnknownSolverTypeError,
    brownian_noise,
    get_ancestral_step,
)

NoiseSampler = Callable[[Any, Any], Tensor]


def _midpoint(process: LogSNR, s: float, n: float, r: float) -> float:
    """The sigma at the fraction r of the step in lam, computed in float32.

    The Brownian path is rough: times that differ in the last digit give noise that differs in the third, so
    the rounding is part of the method.
    """
    ends = torch.tensor([s, n])
    lam = ((1 - ends) / ends).log() if process.flow else ends.log().neg()
    at = lam[0] + r * (lam[1] - lam[0])
    return float(at.neg().sigmoid() if process.flow else at.neg().exp())


def _sample_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None,
    callback: Callback | None,
    eta: float,
    s_noise: float,
    noise_sampler: NoiseSampler | None,
    r: float,
    on_cpu: bool,
) -> Tensor:
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = brownian_noise(run, x, sigmas, noise_sampler, on_cpu)
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    s_noise = s_noise * process.noise_scale

    def stage(x: Tensor, data: Tensor, s: float, to: float) -> Tensor:
        """Exponential Euler from s to `to`, the ancestral way."""
        alpha, alpha_to = process.alpha(s), process.alpha(to)
        down, up = get_ancestral_step(s / alpha, to / alpha_to, eta)
        decay = down * alpha / s  # exp(-h) with h from s down to `down`
        x = x * (alpha_to / alpha * decay) + data * (alpha_to * (1 - decay))
        if eta > 0 and s_noise > 0:
            x = x + noise(s, to) * (alpha_to * up * s_noise)
        return x

    second = 1 / (2 * r)
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        middle = _midpoint(process, s, n, r)
        x2 = stage(x, denoised, s, middle)
        data = torch.lerp(denoised, run.denoise(x2, middle), second)
        x = stage(x, data, s, n)
    return x


@torch.no_grad()
def sample_dpmpp_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r: float = 1 / 2,
) -> Tensor:
    """DPM-Solver++(2S) for the SDE: a stage to the fraction `r` of the step, then the whole step."""
    return _sample_sde(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, r, on_cpu=True)


@torch.no_grad()
def sample_dpmpp_sde_gpu(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r: float = 1 / 2,
) -> Tensor:
    """`sample_dpmpp_sde` with noise from the latent's device."""
    return _sample_sde(model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, r, on_cpu=False)


def _sample_multistep_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None,
    callback: Callback | None,
    eta: float,
    s_noise: float,
    noise_sampler: NoiseSampler | None,
    correct: Callable[[float, float, list[tuple[Tensor, float]]], list[tuple[Tensor, Tensor, float]]],
    on_cpu: bool,
) -> Tensor:
    """Exponential Euler plus what `correct` makes of the last steps.

    `correct(h, he, history)`: history holds (D, h of the step that followed it), newest first, starting with
    the present D; the result lists (A, B, c) of terms alpha_n * c * (A - B).
    """
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = brownian_noise(run, x, sigmas, noise_sampler, on_cpu)
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    s_noise = s_noise * process.noise_scale
    history: list[tuple[Tensor, float]] = []
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        h = process.lam(n) - process.lam(s)
        he = h * (eta + 1)
        alpha = process.alpha(n)
        history.insert(0, (denoised, h))
        x = x * (n / s * math.exp(-h * eta)) - denoised * (alpha * math.expm1(-he))
        for a, b, factor in correct(h, he, history):
            x = x + (a - b) * (alpha * factor)
        if eta > 0 and s_noise > 0:
            x = x + noise(s, n) * (n * math.sqrt(max(-math.expm1(-2 * h * eta), 0.0)) * s_noise)
        del history[2:]
    return x


def _second_order(solver_type: str) -> Callable[..., list[tuple[Tensor, Tensor, float]]]:
    if solver_type not in ("midpoint", "heun"):
        raise UnknownSolverTypeError(f"solver_type {solver_type!r}: expected 'midpoint' or 'heun'")

    def correct(h: float, he: float, history: list[tuple[Tensor, float]]) -> list[tuple[Tensor, Tensor, float]]:
        if len(history) < 2:
            return []
        (now, _), (before, h_before) = history[:2]
        weight = math.expm1(-he) / he + 1 if solver_type == "heun" else -0.5 * math.expm1(-he)
        return [(now, before, weight * h / h_before)]

    return correct


@torch.no_grad()
def sample_dpmpp_2m_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "midpoint",
) -> Tensor:
    """DPM-Solver++(2M) SDE; `solver_type` "midpoint" or "heun"."""
    correct = _second_order(solver_type)
    return _sample_multistep_sde(
        model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, correct, on_cpu=True
    )


@torch.no_grad()
def sample_dpmpp_2m_sde_gpu(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "midpoint",
) -> Tensor:
    """`sample_dpmpp_2m_sde` with noise from the latent's device."""
    correct = _second_order(solver_type)
    return _sample_multistep_sde(
        model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, correct, on_cpu=False
    )


@torch.no_grad()
def sample_dpmpp_2m_sde_heun(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "heun",
) -> Tensor:
    """`sample_dpmpp_2m_sde` with the "heun" correction."""
    return sample_dpmpp_2m_sde(
        model, x, sigmas, extra_args, callback, disable, eta, s_noise, noise_sampler, solver_type
    )


@torch.no_grad()
def sample_dpmpp_2m_sde_heun_gpu(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "heun",
) -> Tensor:
    """`sample_dpmpp_2m_sde_heun` with noise from the latent's device."""
    return sample_dpmpp_2m_sde_gpu(
        model, x, sigmas, extra_args, callback, disable, eta, s_noise, noise_sampler, solver_type
    )


def _third_order(h: float, he: float, history: list[tuple[Tensor, float]]) -> list[tuple[Tensor, Tensor, float]]:
    if len(history) < 2:
        return []
    (now, _), (before, h1) = history[:2]
    phi2 = math.expm1(-he) / he + 1
    r0 = h1 / h
    if len(history) < 3:
        return [(now, before, phi2 / r0)]
    long_ago, h2 = history[2]
    r1 = h2 / h
    phi3 = phi2 / he - 0.5
    # slope d1 and curvature d2 of D over lam are combinations of the two differences; collect their factors
    curvature = 1 / (r0 + r1)
    recent = phi2 * (1 + r0 * curvature) - phi3 * curvature
    older = -phi2 * r0 * curvature + phi3 * curvature
    return [(now, before, recent / r0), (before, long_ago, older / r1)]


@torch.no_grad()
def sample_dpmpp_3m_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """DPM-Solver++(3M) SDE."""
    return _sample_multistep_sde(
        model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, _third_order, on_cpu=True
    )


@torch.no_grad()
def sample_dpmpp_3m_sde_gpu(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """`sample_dpmpp_3m_sde` with noise from the latent's device."""
    return _sample_multistep_sde(
        model, x, sigmas, extra_args, callback, eta, s_noise, noise_sampler, _third_order, on_cpu=False
    )
