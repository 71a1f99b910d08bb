"""DPM-Solver, fast and adaptive (Lu et al. 2022, arXiv:2206.00927), in t = -ln sigma on predicted noise.

Both see only the two ends of a schedule and choose their own steps between them. Times are float32 scalars on
the CPU: each step's size follows from the last one's error, so roundings of time are part of the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, ModelFunction, Run, StepNoise, get_ancestral_step

NoiseSampler = Callable[[Any, Any], Tensor]


def _sigma(t: Tensor) -> Tensor:
    return t.neg().exp()


def _time(sigma: Any) -> Tensor:
    return torch.as_tensor(sigma, dtype=torch.float32, device="cpu").log().neg()


class PIDStepSizeController:
    """Step size for an adaptive solver (Söderlind 2003, digital filters in adaptive time-stepping)."""

    def __init__(
        self,
        h: float,
        pcoeff: float,
        icoeff: float,
        dcoeff: float,
        order: float = 1,
        accept_safety: float = 0.81,
        eps: float = 1e-8,
    ) -> None:
        self.h = h
        self.b1 = (pcoeff + icoeff + dcoeff) / order
        self.b2 = -(pcoeff + 2 * dcoeff) / order
        self.b3 = dcoeff / order
        self.accept_safety = accept_safety
        self.eps = eps
        self.errs: list[float] = []

    @staticmethod
    def limiter(factor: float) -> float:
        """Smoothly limit the change of the step."""
        return 1 + math.atan(factor - 1)

    def propose_step(self, error: float) -> bool:
        """Whether a step with this error is accepted; sets the next `h`."""
        inverse = 1 / (float(error) + self.eps)
        if not self.errs:
            self.errs = [inverse] * 3
        self.errs[0] = inverse
        factor = self.errs[0] ** self.b1 * self.errs[1] ** self.b2 * self.errs[2] ** self.b3
        factor = self.limiter(factor)
        accept = factor >= self.accept_safety
        if accept:
            self.errs[2], self.errs[1] = self.errs[1], self.errs[0]
        self.h *= factor
        return accept


class DPMSolver:
    """Single steps of order one to three from t to t + h; noise predictions of a step are kept by name."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def eps(self, x: Tensor, t: Tensor) -> Tensor:
        """The noise the model sees in `x` at time t."""
        sigma = _sigma(t)
        return (x - self.run.denoise(x, float(sigma))) / sigma

    def step1(self, x: Tensor, t: Tensor, t_next: Tensor, eps: Tensor) -> Tensor:
        """DPM-Solver-1."""
        h = t_next - t
        return x - _sigma(t_next) * h.expm1() * eps

    def step2(
        self,
        x: Tensor,
        t: Tensor,
        t_next: Tensor,
        eps: Tensor,
        cache: dict[str, Tensor],
        r1: float = 1 / 2,
    ) -> Tensor:
        """DPM-Solver-2 with its stage at the fraction r1."""
        h = t_next - t
        eps_r1 = self._stage_r1(x, t, h, eps, cache, r1)
        sigma_next = _sigma(t_next)
        return x - sigma_next * h.expm1() * eps - sigma_next / (2 * r1) * h.expm1() * (eps_r1 - eps)

    def step3(
        self,
        x: Tensor,
        t: Tensor,
        t_next: Tensor,
        eps: Tensor,
        cache: dict[str, Tensor],
        r1: float = 1 / 3,
        r2: float = 2 / 3,
    ) -> Tensor:
        """DPM-Solver-3 with stages at r1 and r2."""
        h = t_next - t
        eps_r1 = self._stage_r1(x, t, h, eps, cache, r1)
        if "r2" not in cache:
            s2 = t + r2 * h
            bend = (r2 * h).expm1() / (r2 * h) - 1
            u2 = x - _sigma(s2) * (r2 * h).expm1() * eps - _sigma(s2) * (r2 / r1) * bend * (eps_r1 - eps)
            cache["r2"] = self.eps(u2, s2)
        sigma_next = _sigma(t_next)
        bend = h.expm1() / h - 1
        return x - sigma_next * h.expm1() * eps - sigma_next / r2 * bend * (cache["r2"] - eps)

    def _stage_r1(self, x: Tensor, t: Tensor, h: Tensor, eps: Tensor, cache: dict[str, Tensor], r1: float) -> Tensor:
        if "r1" not in cache:
            s1 = t + r1 * h
            cache["r1"] = self.eps(x - _sigma(s1) * (r1 * h).expm1() * eps, s1)
        return cache["r1"]


def _split(t: Tensor, t_next: Tensor, t_end: Tensor, eta: float) -> tuple[Tensor, float]:
    """(time to solve to, noise to add there) of an ancestral step from t to t_next."""
    if not eta:
        return t_next, 0.0
    down, _ = get_ancestral_step(_sigma(t), _sigma(t_next), eta)
    t_down = torch.minimum(t_end, _time(down))
    return t_down, float((_sigma(t_next) ** 2 - _sigma(t_down) ** 2).clamp(min=0) ** 0.5)


def _report(run: Run, i: int, x: Tensor, t: Tensor, denoised: Tensor, **more: Any) -> None:
    if run.callback is not None:
        sigma = _sigma(t)
        run.callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma, "denoised": denoised, **more})


@torch.no_grad()
def sample_dpm_fast(
    model: ModelFunction,
    x: Tensor,
    sigma_min: float,
    sigma_max: float,
    n: int,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
) -> Tensor:
    """DPM-Solver-fast: `n` evaluations in third-order steps, the last ones of lower order."""
    if sigma_min <= 0 or sigma_max <= 0:
        raise ValueError(f"sigma_min {sigma_min} and sigma_max {sigma_max} must be above 0")
    run = Run(model, x, [], extra_args, callback)
    solver = DPMSolver(run)
    noise = StepNoise(run, x, noise_sampler)
    t_start, t_end = _time(sigma_max), _time(sigma_min)
    parts = n // 3 + 1
    orders = [3] * (parts - 2) + [2, 1] if n % 3 == 0 else [3] * (parts - 1) + [n % 3]
    times = torch.linspace(float(t_start), float(t_end), parts + 1).unbind()
    for i, order in enumerate(orders):
        t, t_next = times[i], times[i + 1]
        t_solve, up = _split(t, t_next, t_end, eta)
        eps = solver.eps(x, t)
        _report(run, i, x, t, x - eps * _sigma(t))
        if order == 1:
            x = solver.step1(x, t, t_solve, eps)
        elif order == 2:
            x = solver.step2(x, t, t_solve, eps, {})
        else:
            x = solver.step3(x, t, t_solve, eps, {})
        if up > 0:
            x = x + noise(float(_sigma(t)), float(_sigma(t_next))) * (up * s_noise)
    return x


@torch.no_grad()
def sample_dpm_adaptive(
    model: ModelFunction,
    x: Tensor,
    sigma_min: float,
    sigma_max: float,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    order: int = 3,
    rtol: float = 0.05,
    atol: float = 0.0078,
    h_init: float = 0.05,
    pcoeff: float = 0.0,
    icoeff: float = 1.0,
    dcoeff: float = 0.0,
    accept_safety: float = 0.81,
    eta: float = 0.0,
    s_noise: float = 1.0,
    noise_sampler: NoiseSampler | None = None,
    return_info: bool = False,
) -> Any:
    """DPM-Solver-12 or -23 with step size control; reads the error of each step from the device.

    `return_info`: also return how many evaluations and accepted and rejected steps it took.
    """
    if sigma_min <= 0 or sigma_max <= 0:
        raise ValueError(f"sigma_min {sigma_min} and sigma_max {sigma_max} must be above 0")
    if order not in (2, 3):
        raise ValueError(f"order {order}: expected 2 or 3")
    run = Run(model, x, [], extra_args, callback)
    solver = DPMSolver(run)
    noise = StepNoise(run, x, noise_sampler)
    t, t_end = _time(sigma_max), _time(sigma_min)
    controller = PIDStepSizeController(h_init, pcoeff, icoeff, dcoeff, 1.5 if eta else order, accept_safety)
    info = {"steps": 0, "nfe": 0, "n_accept": 0, "n_reject": 0}
    previous = x
    while t < t_end - 1e-5:
        t_next = torch.minimum(t_end, t + controller.h)
        t_solve, up = _split(t, t_next, t_end, eta)
        eps = solver.eps(x, t)
        denoised = x - eps * _sigma(t)
        cache: dict[str, Tensor] = {}
        if order == 2:
            low = solver.step1(x, t, t_solve, eps)
            high = solver.step2(x, t, t_solve, eps, cache)
        else:
            low = solver.step2(x, t, t_solve, eps, cache, r1=1 / 3)
            high = solver.step3(x, t, t_solve, eps, cache)
        allowed = (rtol * torch.maximum(low.abs(), previous.abs())).clamp(min=atol)
        error = float(torch.linalg.vector_norm((low - high) / allowed) / x.numel() ** 0.5)
        if controller.propose_step(error):
            previous = low
            x = high
            if up > 0:
                x = x + noise(float(_sigma(t)), float(_sigma(t_next))) * (up * s_noise)
            t = t_next
            info["n_accept"] += 1
        else:
            info["n_reject"] += 1
        info["nfe"] += order
        info["steps"] += 1
        _report(run, info["steps"] - 1, x, t, denoised, error=error, h=controller.h, **info)
    return (x, info) if return_info else x


def _ends(sigmas: Tensor) -> tuple[float, float]:
    """(last non-zero, first) sigma of a schedule."""
    values = sigmas.tolist()
    return (values[-1] if values[-1] != 0 else values[-2]), values[0]


def dpm_fast_on_schedule(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    **options: Any,
) -> Tensor:
    """`sample_dpm_fast` between the ends of `sigmas`, with as many evaluations as it has steps."""
    if len(sigmas) <= 1:
        return x
    low, high = _ends(sigmas)
    return sample_dpm_fast(model, x, low, high, len(sigmas) - 1, extra_args, callback, disable, **options)


def dpm_adaptive_on_schedule(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    **options: Any,
) -> Tensor:
    """`sample_dpm_adaptive` between the ends of `sigmas`."""
    if len(sigmas) <= 1:
        return x
    low, high = _ends(sigmas)
    return sample_dpm_adaptive(model, x, low, high, extra_args, callback, disable, **options)
