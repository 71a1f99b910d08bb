"""Two- and three-slope solvers in sigma: Heun, Heun++2, the DPM-2 midpoint rule and its ancestral variant."""

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
    StepNoise,
    euler_step,
    flow_ancestral_step,
    get_ancestral_step,
    to_d,
)
from comfy.sampling.solvers.euler import Churn

NoiseSampler = Callable[[Any, Any], Tensor]


def geometric_mean(a: float, b: float) -> float:
    """The sigma half way between two in log sigma."""
    return math.exp((math.log(a) + math.log(b)) / 2)


@torch.no_grad()
def sample_heun(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> Tensor:
    """Heun's method (Karras et al. 2022, arXiv:2206.00364, algorithm 2): average of the slopes at both ends."""
    run = Run(model, x, sigmas, extra_args, callback)
    churn = Churn(len(run), s_churn, s_tmin, s_tmax, s_noise)
    for i, s, n in run.steps():
        x, s_hat = churn(x, s)
        denoised = run.denoise(x, s_hat)
        run.report(i, x, denoised, s_hat)
        predicted = euler_step(x, denoised, s_hat, n)
        if n == 0:
            x = predicted
            continue
        slope = to_d(x, s_hat, denoised)
        slope_end = to_d(predicted, n, run.denoise(predicted, n))
        x = x + (slope + slope_end) * ((n - s_hat) / 2)
    return x


@torch.no_grad()
def sample_heunpp2(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> Tensor:
    """Heun++ with up to three slopes, weighted by sigma (Wang et al. 2024, arXiv:2404.00512).

    Draws from the global generator at each step, churn or not.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    churn = Churn(len(run), s_churn, s_tmin, s_tmax, s_noise)
    first, end = run.sigmas[0], run.sigmas[-1]
    for i, s, n in run.steps():
        before = x
        x, s_hat = churn(x, s)
        if x is before:
            torch.randn_like(x)  # the step's draw is made in any case: later draws depend on it
        denoised = run.denoise(x, s_hat)
        run.report(i, x, denoised, s_hat)
        slope = to_d(x, s_hat, denoised)
        if n == end:
            x = x + slope * (n - s_hat)
            continue
        x2 = x + slope * (n - s_hat)
        slope2 = to_d(x2, n, run.denoise(x2, n))
        after = run.sigmas[i + 2]
        if after == end:
            w2 = n / (2 * first)
            x = x + (slope * (1 - w2) + slope2 * w2) * (n - s_hat)
            continue
        x3 = x2 + slope2 * (after - n)
        slope3 = to_d(x3, after, run.denoise(x3, after))
        w2, w3 = n / (3 * first), after / (3 * first)
        x = x + (slope * (1 - w2 - w3) + slope2 * w2 + slope3 * w3) * (n - s_hat)
    return x


@torch.no_grad()
def sample_dpm_2(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_churn: float = 0.0,
    s_tmin: float = 0.0,
    s_tmax: float = float("inf"),
    s_noise: float = 1.0,
) -> Tensor:
    """Midpoint rule with the midpoint in log sigma (DPM-Solver-2, Lu et al. 2022, arXiv:2206.00927, in VE)."""
    run = Run(model, x, sigmas, extra_args, callback)
    churn = Churn(len(run), s_churn, s_tmin, s_tmax, s_noise)
    for i, s, n in run.steps():
        x, s_hat = churn(x, s)
        denoised = run.denoise(x, s_hat)
        run.report(i, x, denoised, s_hat)
        if n == 0:
            x = euler_step(x, denoised, s_hat, n)
            continue
        middle = geometric_mean(s_hat, n)
        x2 = euler_step(x, denoised, s_hat, middle)
        x = x + to_d(x2, middle, run.denoise(x2, middle)) * (n - s_hat)
    return x


@torch.no_grad()
def sample_dpm_2_ancestral(
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
    """DPM-2 down to a lower sigma, then fresh noise up to the next."""
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if process.flow and n > 0:
            down, scale, up = flow_ancestral_step(s, n, eta)
        else:
            (down, up), scale = get_ancestral_step(s, n, eta), 1.0
        if down == 0:
            x = euler_step(x, denoised, s, down)
        else:
            middle = geometric_mean(s, down)
            x2 = euler_step(x, denoised, s, middle)
            x = x + to_d(x2, middle, run.denoise(x2, middle)) * (down - s)
        if n > 0 and up > 0:
            x = x * scale + noise(s, n) * (s_noise * up)
    return x
