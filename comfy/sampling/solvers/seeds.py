"""SEEDS: exponential solvers of the reverse SDE with several stages (Gonzalez et al. 2023, arXiv:2305.14267)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, LogSNR, ModelFunction, Run, StepNoise, UnknownSolverTypeError

NoiseSampler = Callable[[Any, Any], Tensor]


def phi1(h: float) -> float:
    """e^h - 1."""
    return math.expm1(h)


def phi2(h: float) -> float:
    """(e^h - 1 - h) / h."""
    return (math.expm1(h) - h) / h


class _SegmentNoise:
    """Noise of one step built up over the segments between its stages.

    The stages see one path: each further segment keeps what was drawn, decayed, and adds its own draw.
    """

    def __init__(self, noise: StepNoise, h: float, eta: float, active: bool) -> None:
        self.noise, self.h, self.eta, self.active = noise, h, eta, active
        self.total: Tensor | None = None

    def extend(self, s: float, n: float, from_fraction: float, to_fraction: float) -> None:
        """Carry the noise on from one fraction of the step to another; `s`, `n` are their sigmas."""
        if not self.active:
            return
        gap = (from_fraction - to_fraction) * self.h * self.eta
        fresh = self.noise(s, n) * math.sqrt(max(-math.expm1(2 * gap), 0.0))
        self.total = fresh if self.total is None else self.total * math.exp(gap) + fresh

    def add_to(self, x: Tensor, scale: float) -> Tensor:
        return x if self.total is None else x + self.total * scale


def _check_solver_type(solver_type: str) -> None:
    if solver_type not in ("phi_1", "phi_2"):
        raise UnknownSolverTypeError(f"solver_type {solver_type!r}: expected 'phi_1' or 'phi_2'")


@torch.no_grad()
def sample_seeds_2(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r: float = 0.5,
    solver_type: str = "phi_1",
) -> Tensor:
    """SEEDS-2: one inner stage at the fraction `r` of the step in lam."""
    _check_solver_type(solver_type)
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    second = 1 / (2 * r)
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        lam_s, lam_n = process.lam(s), process.lam(n)
        h = lam_n - lam_s
        he = h * (eta + 1)
        segments = _SegmentNoise(noise, h, eta, active=eta > 0 and s_noise > 0)

        middle = process.sigma(lam_s + r * h)
        x2 = x * (middle / s * math.exp(-r * h * eta)) - denoised * (process.alpha(middle) * phi1(-r * he))
        segments.extend(s, middle, 0.0, r)
        x2 = segments.add_to(x2, middle * s_noise)
        denoised2 = run.denoise(x2, middle)

        alpha = process.alpha(n)
        x = x * (n / s * math.exp(-h * eta))
        if solver_type == "phi_1":
            x = x - torch.lerp(denoised, denoised2, second) * (alpha * phi1(-he))
        else:
            b2 = phi2(-he) / r
            x = x - denoised * (alpha * (phi1(-he) - b2)) - denoised2 * (alpha * b2)
        segments.extend(middle, n, r, 1.0)
        x = segments.add_to(x, n * s_noise)
    return x


@torch.no_grad()
def sample_exp_heun_2_x0(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    solver_type: str = "phi_2",
) -> Tensor:
    """Exponential Heun on D (Hochbruck & Ostermann 2010): SEEDS-2 without noise, its stage at the end."""
    return sample_seeds_2(
        model, x, sigmas, extra_args, callback, disable, eta=0.0, s_noise=0.0, r=1.0, solver_type=solver_type
    )


@torch.no_grad()
def sample_exp_heun_2_x0_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    solver_type: str = "phi_2",
) -> Tensor:
    """Exponential Heun of the SDE: SEEDS-2 with its stage at the end."""
    return sample_seeds_2(
        model, x, sigmas, extra_args, callback, disable, eta, s_noise, noise_sampler, 1.0, solver_type
    )


@torch.no_grad()
def sample_seeds_3(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    r_1: float = 1 / 3,
    r_2: float = 2 / 3,
) -> Tensor:
    """SEEDS-3: inner stages at the fractions `r_1` and `r_2` of the step in lam."""
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        lam_s = process.lam(s)
        h = process.lam(n) - lam_s
        he = h * (eta + 1)
        segments = _SegmentNoise(noise, h, eta, active=eta > 0 and s_noise > 0)

        m1 = process.sigma(lam_s + r_1 * h)
        x2 = x * (m1 / s * math.exp(-r_1 * h * eta)) - denoised * (process.alpha(m1) * phi1(-r_1 * he))
        segments.extend(s, m1, 0.0, r_1)
        denoised2 = run.denoise(segments.add_to(x2, m1 * s_noise), m1)

        m2 = process.sigma(lam_s + r_2 * h)
        a2 = r_2 / r_1 * phi2(-r_2 * he)
        a1 = phi1(-r_2 * he) - a2
        alpha = process.alpha(m2)
        x3 = x * (m2 / s * math.exp(-r_2 * h * eta)) - denoised * (alpha * a1) - denoised2 * (alpha * a2)
        segments.extend(m1, m2, r_1, r_2)
        denoised3 = run.denoise(segments.add_to(x3, m2 * s_noise), m2)

        b3 = phi2(-he) / r_2
        b1 = phi1(-he) - b3
        alpha = process.alpha(n)
        x = x * (n / s * math.exp(-h * eta)) - denoised * (alpha * b1) - denoised3 * (alpha * b3)
        segments.extend(m2, n, r_2, 1.0)
        x = segments.add_to(x, n * s_noise)
    return x
