"""RES: refined exponential solver, multistep (Zhang et al. 2023, arXiv:2308.02157)."""

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
    get_ancestral_step,
)

NoiseSampler = Callable[[Any, Any], Tensor]


@torch.no_grad()
def res_multistep(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    eta: float = 1.0,
    cfg_pp: bool = False,
) -> Tensor:
    """Second-order exponential multistep in t = -ln sigma, to an ancestral `down` sigma, then noise.

    With `cfg_pp` the decay and the history are those of the negative.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * LogSNR(model).noise_scale
    uncond = run.keep_uncond() if cfg_pp else None
    before: Tensor | None = None
    down_before = 0.0
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        data = denoised if uncond is None else uncond()
        down, up = get_ancestral_step(s, n, eta)
        if down == 0 or before is None:
            x = denoised + (x - data) * (down / s) if cfg_pp else euler_step(x, denoised, s, down)
        else:
            t, t_before, t_next = -math.log(s), -math.log(run.sigmas[i - 1]), -math.log(down)
            h = t_next - t
            c2 = (t_before + math.log(down_before)) / h
            phi1 = math.expm1(-h) / -h
            phi2 = (phi1 - 1) / -h
            b1, b2 = (phi1 - phi2 / c2, phi2 / c2) if c2 else (0.0, 0.0)
            if cfg_pp:
                x = x + (denoised - data)
            x = x * math.exp(-h) + (data * b1 + before * b2) * h
        if n > 0 and up > 0:
            x = x + noise(s, n) * (s_noise * up)
        before, down_before = data, down
    return x


@torch.no_grad()
def sample_res_multistep(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """RES multistep of the ODE."""
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=0.0, cfg_pp=False)


@torch.no_grad()
def sample_res_multistep_cfg_pp(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """RES multistep with CFG++."""
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=0.0, cfg_pp=True)


@torch.no_grad()
def sample_res_multistep_ancestral(
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
    """RES multistep, ancestral."""
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=eta, cfg_pp=False)


@torch.no_grad()
def sample_res_multistep_ancestral_cfg_pp(
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
    """RES multistep, ancestral, with CFG++."""
    return res_multistep(model, x, sigmas, extra_args, callback, disable, s_noise, noise_sampler, eta=eta, cfg_pp=True)
