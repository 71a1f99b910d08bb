"""Solvers come nearer to the exact path of the equation, and as fast as docs/sampling.md says.

Double precision throughout: what is measured is the method, not float32.
"""

from __future__ import annotations

import inspect
import itertools
import math
from functools import cache

import pytest
import torch
from torch import Tensor

import comfy.model_sampling
from comfy.k_diffusion.sampling import sample_dpm_adaptive
from comfy.sampling.solvers import SAMPLERS, common
from comfy.sampling.solvers.er_sde import noise_scaler_for

# Enough steps for starts of lower order to show, and few enough for fourth orders to stay above rounding.
STEPS = (160, 640)
START = torch.linspace(-8, 8, 9, dtype=torch.float64).reshape(1, 1, 3, 3)


class TwoClusters:
    """The exact denoiser of data around -1 and 1 with variance 1/4: smooth, and not linear."""

    def __init__(self) -> None:
        self.inner_model = self.model_patcher = self
        self.model_sampling = comfy.model_sampling.model_sampling(None, comfy.model_sampling.ModelType.EPS)

    def get_model_object(self, name: str) -> object:
        return getattr(self, name)

    def __call__(self, x: Tensor, sigma: Tensor, model_options: dict | None = None, **kwargs: object) -> Tensor:
        noise = sigma.reshape(-1, 1, 1, 1).double() ** 2
        variance = 0.25 + noise
        denoised = (0.25 * x + noise * torch.tanh(x / variance)) / variance
        for function in (model_options or {}).get("sampler_post_cfg_function", []):
            function({"uncond_denoised": denoised, "denoised": denoised})
        return denoised


def schedule(steps: int) -> Tensor:
    """From 6 to 0.3, even in the third root."""
    first, last = 6.0 ** (1 / 3), 0.3 ** (1 / 3)
    return (first + torch.linspace(0, 1, steps + 1, dtype=torch.float64) * (last - first)) ** 3


@cache
def exact() -> Tensor:
    """The path's end by the classical method of Runge and Kutta in small steps."""
    model, x = TwoClusters(), START

    def slope(x: Tensor, sigma: float) -> Tensor:
        return (x - model(x, torch.tensor([sigma], dtype=torch.float64))) / sigma

    sigmas = schedule(3000).tolist()
    for s, n in itertools.pairwise(sigmas):
        h = n - s
        first = slope(x, s)
        second = slope(x + h / 2 * first, s + h / 2)
        third = slope(x + h / 2 * second, s + h / 2)
        x = x + h / 6 * (first + 2 * second + 2 * third + slope(x + h * third, n))
    return x


def error(name: str, steps: int) -> float:
    """Distance from the exact end; noise, and what stands for it in the equation, is left out."""
    function = SAMPLERS[name].function
    without_noise = {
        "eta": 0.0,
        "noise_sampler": lambda sigma, sigma_next: torch.zeros_like(START),
        "tau_func": lambda sigma: 0.0,
        "noise_scaler": noise_scaler_for("ODE", 0.0),
    }
    options = {k: v for k, v in without_noise.items() if k in inspect.signature(function).parameters}
    result = function(TwoClusters(), START.clone(), schedule(steps), extra_args={"seed": 0}, **options)
    return float((result - exact()).abs().max())


@pytest.fixture
def double(monkeypatch):
    """Sigmas reach the model unrounded."""

    def sigma_batch(x: Tensor, sigma: float) -> Tensor:
        batch = torch.full((x.shape[0],), sigma, dtype=torch.float64)
        batch.host_sigma = sigma
        return batch

    monkeypatch.setattr(common, "sigma_batch", sigma_batch)


@pytest.mark.parametrize("name", [name for name, entry in SAMPLERS.items() if entry.converges])
def test_order_in_effect(name, double):
    few, many = (error(name, steps) for steps in STEPS)
    measured = math.log(few / many) / math.log(STEPS[1] / STEPS[0])
    assert abs(measured - SAMPLERS[name].converges) <= 0.35, measured


# Its steps follow the error allowed, not the schedule.
def test_the_adaptive_solver_is_as_exact_as_it_is_told(double):
    sigmas = schedule(8).tolist()
    errors = []
    for tolerance in (1e-2, 1e-4):
        result = sample_dpm_adaptive(
            TwoClusters(), START.clone(), sigmas[-1], sigmas[0], extra_args={}, rtol=tolerance, atol=tolerance / 10
        )
        errors.append(float((result - exact()).abs().max()))
    assert errors[1] < errors[0] / 4 and errors[1] < 1e-3
