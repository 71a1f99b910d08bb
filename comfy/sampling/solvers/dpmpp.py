"""DPM-Solver++: multistep (2M) and singlestep (2S), and their CFG++ variants (Lu et al. 2022, arXiv:2211.01095).

Here t = -ln sigma, h the step in t.
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
    StepNoise,
    euler_step,
    flow_ancestral_step,
    get_ancestral_step,
)

NoiseSampler = Callable[[Any, Any], Tensor]


@torch.no_grad()
def sample_dpmpp_2m(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
) -> Tensor:
    """DPM-Solver++(2M): D extrapolated linearly in t from the last two evaluations."""
    run = Run(model, x, sigmas, extra_args, callback)
    before, h_before = None, 0.0
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        data, h = denoised, 0.0
        if n > 0:
            h = math.log(s) - math.log(n)
            if before is not None:
                data = torch.lerp(denoised, before, -h / (2 * h_before))
        x = euler_step(x, data, s, n)
        before, h_before = denoised, h
    return x


@torch.no_grad()
def sample_dpmpp_2m_cfg_pp(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
) -> Tensor:
    """DPM-Solver++(2M) with CFG++: the slope and its history are those of the negative (arXiv:2406.08070)."""
    run = Run(model, x, sigmas, extra_args, callback)
    uncond = run.keep_uncond()
    uncond_before, h_before = None, 0.0
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        unguided = uncond()
        decay, h = n / s, 0.0
        slope = unguided * -decay
        if n > 0:
            h = math.log(s) - math.log(n)
            if uncond_before is not None:
                slope = slope + (denoised - uncond_before) * ((1 - decay) * h / (2 * h_before))
        x = denoised + slope + x * decay
        uncond_before, h_before = unguided, h
    return x


@torch.no_grad()
def sample_dpmpp_2s_ancestral(
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
    """DPM-Solver++(2S): a midpoint evaluation within each step, then fresh noise."""
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
            middle = _halfway(process, s, down)
            half = euler_step(x, denoised, s, middle)
            x = euler_step(x, run.denoise(half, middle), s, down)
        if n > 0 and up > 0:
            x = x * scale + noise(s, n) * (s_noise * up)
    return x


def _halfway(process: LogSNR, s: float, down: float) -> float:
    """The sigma in the middle of the step in lam; pure noise of a flow has no finite lam."""
    if process.flow and s == 1.0:
        return 0.9999
    return process.sigma((process.lam(s) + process.lam(down)) / 2)


@torch.no_grad()
def sample_dpmpp_2s_ancestral_cfg_pp(
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
    """DPM-Solver++(2S) ancestral with CFG++: x is moved by the guidance, the decay by the negative."""
    run = Run(model, x, sigmas, extra_args, callback)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * LogSNR(model).noise_scale
    uncond = run.keep_uncond()
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        unguided = uncond()
        down, up = get_ancestral_step(s, n, eta)
        if down == 0:
            x = denoised + (x - unguided) * (down / s)
        else:
            middle = math.sqrt(s * down)
            half = euler_step(x + (denoised - unguided), denoised, s, middle)
            denoised_half = run.denoise(half, middle)
            x = euler_step(x + (denoised - uncond()), denoised_half, s, down)
        if n > 0 and up > 0:
            x = x + noise(s, n) * (s_noise * up)
    return x
