"""First-order solvers: Euler and its ancestral and CFG++ variants; DDPM; LCM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
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
    noised,
)

NoiseSampler = Callable[[Any, Any], Tensor]


class Churn:
    """Karras et al. 2022, algorithm 2: before a step, add noise and raise sigma to match.

    The noise continues the global generator, after the initial noise.
    """

    def __init__(self, steps: int, s_churn: float, s_tmin: float, s_tmax: float, s_noise: float) -> None:
        self.gamma = min(s_churn / max(steps, 1), math.sqrt(2) - 1) if s_churn > 0 else 0.0
        self.s_tmin, self.s_tmax, self.s_noise = s_tmin, s_tmax, s_noise

    def __call__(self, x: Tensor, s: float) -> tuple[Tensor, float]:
        """(x, sigma) of the step that starts at sigma `s`."""
        if not self.gamma or not self.s_tmin <= s <= self.s_tmax:
            return x, s
        raised = s * (self.gamma + 1)
        noise = torch.randn_like(x) * self.s_noise
        return x + noise * math.sqrt(raised**2 - s**2), raised


@torch.no_grad()
def sample_euler(
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
    """Euler's method with optional churn (Karras et al. 2022, arXiv:2206.00364, algorithm 2, first order)."""
    run = Run(model, x, sigmas, extra_args, callback)
    churn = Churn(len(run), s_churn, s_tmin, s_tmax, s_noise)
    for i, s, n in run.steps():
        x, s_hat = churn(x, s)
        denoised = run.denoise(x, s_hat)
        run.report(i, x, denoised, s_hat)
        x = euler_step(x, denoised, s_hat, n)
    return x


@torch.no_grad()
def sample_euler_ancestral(
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
    """Euler down to a lower sigma, then fresh noise up to the next (Song et al. 2020, DDIM with eta)."""
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
        elif process.flow:
            down, scale, up = flow_ancestral_step(s, n, eta)
            x = euler_step(x, denoised, s, down)
            if eta > 0:
                x = x * scale + noise(s, n) * (s_noise * up)
        else:
            down, up = get_ancestral_step(s, n, eta)
            # nothing of x is left (ascending sigmas): noise on top of D would not be a step of this process
            x = denoised if down == 0 else euler_step(x, denoised, s, down) + noise(s, n) * (s_noise * up)
    return x


@torch.no_grad()
def sample_euler_ancestral_cfg_pp(
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
    """CFG++ (Chung et al. 2024, arXiv:2406.08070): the slope is the unguided one, only D is guided."""
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    uncond = run.keep_uncond()
    s_noise = s_noise * process.noise_scale
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            return denoised
        alpha, alpha_next = process.alpha(s), process.alpha(n)
        # noise levels relative to the signal; from pure noise (alpha 0) all of the next level is drawn anew
        from_level, to_level = (s / alpha if alpha else math.inf), n / alpha_next
        down, up = get_ancestral_step(from_level, to_level, eta) if alpha or not eta else (0.0, to_level)
        slope = (x - alpha * uncond()) / s
        x = alpha_next * (denoised + down * slope)
        if up > 0:
            x = x + noise(s, n) * (alpha_next * s_noise * up)
    return x


@torch.no_grad()
def sample_euler_cfg_pp(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
) -> Tensor:
    """CFG++ without noise: Euler whose slope is that of the negative (arXiv:2406.08070, algorithm 2)."""
    return sample_euler_ancestral_cfg_pp(model, x, sigmas, extra_args, callback, disable, eta=0.0)


@torch.no_grad()
def sample_euler_cfg_pp_alternative(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
) -> Tensor:
    """Euler on x moved by the guidance: the slope is (x - D + (Du - D))/s, also in the last step."""
    run = Run(model, x, sigmas, extra_args, callback)
    uncond = run.keep_uncond()
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        x = x + (x - denoised + (uncond() - denoised)) * ((n - s) / s)
    return x


@torch.no_grad()
def sample_ddpm(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """Ancestral sampling of DDPM (Ho et al. 2020, arXiv:2006.11239, algorithm 2) between any two sigmas."""
    run = Run(model, x, sigmas, extra_args, callback)
    noise = StepNoise(run, x, noise_sampler)
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        # float32 like the latent: at small sigmas 1 - cumprod keeps few digits, and they are part of the result
        s32, n32, one = np.float32(s), np.float32(n), np.float32(1)
        cumprod, cumprod_next = one / (s32 * s32 + one), one / (n32 * n32 + one)
        ratio = cumprod / cumprod_next
        predicted_noise = (x - denoised) / s
        vp = x / math.sqrt(1.0 + s * s)
        mean = (vp - predicted_noise * float((one - ratio) / np.sqrt(one - cumprod))) / math.sqrt(ratio)
        if n > 0:
            variance = float((one - ratio) * (one - cumprod_next) / (one - cumprod))
            mean = mean + noise(s, n) * math.sqrt(variance)
        x = mean * math.sqrt(1.0 + n * n)
    return x


@torch.no_grad()
def sample_lcm(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    noise_sampler: NoiseSampler | None = None,
    s_noise: float = 1.0,
    s_noise_end: float | None = None,
    noise_clip_std: float = 0.0,
) -> Tensor:
    """Multistep consistency sampling (Luo et al. 2023, arXiv:2310.04378): denoise fully, noise again.

    `s_noise` to `s_noise_end`: strength of the new noise, linear over the steps. `noise_clip_std`: limit of
    the noise in its own standard deviations, 0 for none.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    model_sampling = LogSNR(model).model_sampling
    noise = StepNoise(run, x, noise_sampler)
    s_noise_end = s_noise if s_noise_end is None else s_noise_end
    last = max(len(run) - 1, 1)
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        x = denoised
        if n > 0:
            fresh = noise(s, n)
            if noise_clip_std > 0:
                limit = noise_clip_std * fresh.std()
                fresh = fresh.clamp(min=-limit, max=limit)
            strength = s_noise + (s_noise_end - s_noise) * i / last
            if strength != 1.0:
                fresh = fresh * strength
            x = noised(model_sampling, n, fresh, x)
    return x
