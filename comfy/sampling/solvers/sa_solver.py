"""SA-Solver: stochastic Adams predictor-corrector (Xue et al. 2023, arXiv:2309.05019), in lam."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, LogSNR, ModelFunction, Run, StepNoise

NoiseSampler = Callable[[Any, Any], Tensor]
TauFunction = Callable[[Any], float]


def get_tau_interval_func(start_sigma: float, end_sigma: float, eta: float = 1.0) -> TauFunction:
    """tau(sigma): `eta` for start_sigma >= sigma >= end_sigma, else 0 (no noise there)."""

    def tau(sigma: Any) -> float:
        return eta if eta > 0 and start_sigma >= float(sigma) >= end_sigma else 0.0

    return tau


def adams_coefficients(lams: Sequence[float], s: float, n: float, tau: float, simple_order_2: bool) -> np.ndarray:
    """Weights of D at `lams` in the exponential step from lam `s` to `n`.

    Integrals of (1+tau^2) e^((1+tau^2)(lam - n)) times the Lagrange basis of `lams`. With `simple_order_2` the
    slope through two points is weighted by its leading term in h alone.
    """
    h = n - s
    rate = (1 + tau**2) * h
    # u = (lam - n)/h runs from -1 to 0, which keeps the powers of the Vandermonde matrix near 1
    nodes = (np.asarray(lams) - s) / h - 1.0
    decay = math.exp(-rate)
    moments = [1 - decay]
    for k in range(1, len(nodes)):
        moments.append(-decay * (-1.0) ** k - k / rate * moments[-1])
    if simple_order_2 and len(nodes) == 2:
        # of the two, one is at s itself (node -1); the other gets h^2/2 of the slope towards it
        other = 0 if nodes[1] == -1.0 else 1
        weight = 0.5 * rate / (nodes[other] + 1.0)
        weights = np.full(2, moments[0] - weight)
        weights[other] = weight
        return weights
    return np.linalg.solve(np.vander(nodes, increasing=True).T, np.array(moments))


@torch.no_grad()
def sample_sa_solver(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = False,
    tau_func: TauFunction | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    predictor_order: int = 3,
    corrector_order: int = 4,
    use_pece: bool = False,
    simple_order_2: bool = False,
) -> Tensor:
    """Predict, evaluate, correct (and with `use_pece` evaluate again).

    `tau_func(sigma)`: strength of the noise at a sigma; by default 1 in the middle of the run, 0 at its ends.
    A `corrector_order` of 0 leaves the correction out.
    """
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback)
    process = LogSNR(model)
    noise = StepNoise(run, x, noise_sampler)
    s_noise = s_noise * process.noise_scale
    run.sigmas = process.first_sigma_below_one(run.sigmas)
    if tau_func is None:
        percent_to_sigma = process.model_sampling.percent_to_sigma
        tau_func = get_tau_interval_func(percent_to_sigma(0.2), percent_to_sigma(0.8), eta=1.0)
    lams = [process.lam(s) for s in run.sigmas]
    ends_at_zero = run.sigmas[-1] == 0

    def advance(x: Tensor, i: int, tau: float, order: int, data: list[Tensor], last: int) -> Tensor:
        """Step i -> i+1 with the last `order` entries of `data`, the newest of which is at index `last`."""
        h = lams[i + 1] - lams[i]
        factors = adams_coefficients(lams[last - order + 1 : last + 1], lams[i], lams[i + 1], tau, simple_order_2)
        s, n = run.sigmas[i], run.sigmas[i + 1]
        alpha = process.alpha(n)
        x = x * (n / s * math.exp(-(tau**2) * h))
        for factor, denoised in zip(factors, data[-order:]):
            x = torch.add(x, denoised, alpha=float(factor) * alpha)
        return x

    corrected, predicted = x, x
    fresh: Tensor | None = None
    tau = 0.0
    history: list[Tensor] = []
    longest = max(predictor_order, corrector_order)
    for i, s, n in run.steps():
        denoised = run.denoise(predicted, s)
        run.report(i, predicted, denoised)
        history = [*history[1 - longest :], denoised] if longest > 1 else [denoised]
        if i == 0 or corrector_order == 0 or (n == 0 and not use_pece):
            corrected = predicted
        else:
            order = min(corrector_order, len(history))
            if ends_at_zero:
                order = min(order, len(run) - i)
            corrected = advance(corrected, i - 1, tau, order, history, last=i)
            if fresh is not None:
                corrected = corrected + fresh
            if use_pece:
                denoised = run.denoise(corrected, s)
                history[-1] = denoised
        if n == 0:
            return denoised
        tau = float(tau_func(n))
        order = min(predictor_order, len(history))
        if ends_at_zero:
            order = min(order, len(run) - 1 - i)
        predicted = advance(corrected, i, tau, order, history, last=i)
        fresh = None
        if tau > 0 and s_noise > 0:
            h = lams[i + 1] - lams[i]
            fresh = noise(s, n) * (n * math.sqrt(max(-math.expm1(-2 * tau**2 * h), 0.0)) * s_noise)
            predicted = predicted + fresh
    return predicted


@torch.no_grad()
def sample_sa_solver_pece(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = False,
    tau_func: TauFunction | None = None,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    predictor_order: int = 3,
    corrector_order: int = 4,
    simple_order_2: bool = False,
) -> Tensor:
    """SA-Solver that evaluates again after each correction."""
    return sample_sa_solver(
        model,
        x,
        sigmas,
        extra_args,
        callback,
        disable,
        tau_func,
        s_noise,
        noise_sampler,
        predictor_order,
        corrector_order,
        use_pece=True,
        simple_order_2=simple_order_2,
    )
