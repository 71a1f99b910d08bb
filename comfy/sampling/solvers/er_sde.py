"""ER-SDE: extended reverse-time SDE solver (Cui et al. 2023, arXiv:2309.06169), orders one to three."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, LogSNR, ModelFunction, Run, StepNoise, UnknownSolverTypeError

NoiseSampler = Callable[[Any, Any], Tensor]
NoiseScaler = Callable[[Any], Any]

INTEGRATION_POINTS = 200
SOLVER_TYPES = ("ER-SDE", "Reverse-time SDE", "ODE")


def default_er_sde_noise_scaler(v: Any) -> Any:
    """The paper's recommended noise scale, v * (e^(v^0.3) + 10)."""
    return v * (np.exp(np.power(v, 0.3)) + 10.0)


def noise_scaler_for(solver_type: str, eta: float = 1.0) -> NoiseScaler:
    """The noise scale of a solver type (SOLVER_TYPES); `eta` 0 makes each of them the ODE."""
    if solver_type == "ER-SDE":
        return lambda v: v * (np.exp(np.power(v, 0.3)) + 10.0) ** eta
    if solver_type == "Reverse-time SDE":
        return lambda v: np.power(v, eta + 1)
    if solver_type == "ODE":
        return lambda v: v
    raise UnknownSolverTypeError(f"solver_type {solver_type!r} is none of {', '.join(SOLVER_TYPES)}")


def _evaluate(scaler: NoiseScaler, v: np.ndarray) -> np.ndarray:
    """`scaler` on host values; scalers of packs are written for tensors."""
    try:
        result = scaler(v)
    except TypeError:
        result = scaler(torch.from_numpy(v))
    return np.asarray(result, dtype=np.float64)


@torch.no_grad()
def sample_er_sde(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    noise_scaler: NoiseScaler | None = None,
    max_stage: int = 3,
) -> Tensor:
    """ER-SDE-Solver of order `max_stage`; `noise_scaler` maps e^-lam to the SDE's noise scale.

    Higher orders add Taylor terms of D; their integrals are rectangle sums over 200 points.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    scale = noise_scaler or default_er_sde_noise_scaler
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    levels = [math.exp(-process.lam(s)) if s > 0 else 0.0 for s in run.sigmas]
    before, slope_before = None, None
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        stage = min(max_stage, i + 1)
        level, level_next = levels[i], levels[i + 1]
        alpha = process.alpha(n)
        f_s, f_n = _evaluate(scale, np.array([level, level_next]))
        ratio = float(f_n / f_s)
        x = x * (alpha / process.alpha(s) * ratio) + denoised * (alpha * (1 - ratio))
        slope = None
        if stage >= 2:
            dt = level_next - level
            width = -dt / INTEGRATION_POINTS
            points = level_next + np.arange(INTEGRATION_POINTS) * width
            inverse = 1 / _evaluate(scale, points)
            first = float(inverse.sum() * width)
            slope = (denoised - before) / (level - levels[i - 1])
            x = x + slope * (alpha * (dt + first * float(f_n)))
            if stage >= 3:
                second = float(((points - level) * inverse).sum() * width)
                curvature = (slope - slope_before) / ((level - levels[i - 2]) / 2)
                x = x + curvature * (alpha * (dt**2 / 2 + second * float(f_n)))
        if s_noise > 0:
            variance = level_next**2 - level**2 * ratio**2
            x = x + noise(s, n) * (alpha * s_noise * math.sqrt(max(variance, 0.0)))
        before, slope_before = denoised, slope
    return x
