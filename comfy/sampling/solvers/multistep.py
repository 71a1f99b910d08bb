"""Linear multistep methods on the slope d = (x - D)/s, and the gradient-estimation correction.

Adams-Bashforth methods take the step from s to n as the sum of c_j * d_j over the last slopes; they differ
in how the coefficients are found. Coefficients are host floats, computed before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, ModelFunction, Run, to_d


@lru_cache(maxsize=32)
def _gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(points)


def linear_multistep_coeff(order: int, t: Sequence[float], i: int, j: int) -> float:
    """Integral from t[i] to t[i+1] of the Lagrange polynomial that is 1 at t[i-j] and 0 at the `order` - 1
    other points among the last `order`; exact."""
    if order - 1 > i:
        raise ValueError(f"order {order} is too high for step {i}: it needs {order} points")
    nodes, weights = _gauss_legendre(order // 2 + 1)
    half = (t[i + 1] - t[i]) / 2
    at = t[i] + half * (nodes + 1)
    value = np.ones_like(at)
    for k in range(order):
        if k != j:
            value *= (at - t[i - k]) / (t[i - j] - t[i - k])
    return float((value * weights).sum() * half)


def _adams_bashforth(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None,
    callback: Callback | None,
    max_order: int,
    coefficients: Callable[[list[float], int, int], tuple[Sequence[float], float | None]],
    report_start: bool = True,
) -> Tensor:
    """`coefficients(sigmas, step, order)`: factors of the last slopes, newest first, and either their divisor,
    for a step of width 1, or None where the width is already in the factors.

    `report_start`: the callback sees the x that the run began with, as the ecosystem's iPNDM and DEIS do.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    start = x
    slopes: list[Tensor] = []
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, start if report_start else x, denoised)
        if n == 0:
            x = denoised
            continue
        slopes.insert(0, to_d(x, s, denoised))
        del slopes[max_order:]
        factors, divisor = coefficients(run.sigmas, i, len(slopes))
        # slopes are summed before they meet x: at large sigmas x has few digits left for single terms
        total = slopes[0] * factors[0]
        for factor, slope in zip(factors[1:], slopes[1:]):
            total = total + slope * factor
        x = x + (total if divisor is None else total * (n - s) / divisor)
    return x


@torch.no_grad()
def sample_lms(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    order: int = 4,
) -> Tensor:
    """Adams-Bashforth in sigma with exact coefficients for uneven steps (Katherine Crowson's k-diffusion LMS)."""

    def coefficients(t: list[float], i: int, used: int) -> tuple[list[float], None]:
        return [linear_multistep_coeff(used, t, i, j) for j in range(used)], None

    return _adams_bashforth(model, x, sigmas, extra_args, callback, order, coefficients, report_start=False)


# factors of the slopes, and what their sum is divided by
_FIXED_ADAMS = {
    1: ((1.0,), 1.0),
    2: ((3.0, -1.0), 2.0),
    3: ((23.0, -16.0, 5.0), 12.0),
    4: ((55.0, -59.0, 37.0, -9.0), 24.0),
}


@torch.no_grad()
def sample_ipndm(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    max_order: int = 4,
) -> Tensor:
    """Improved PNDM: Adams-Bashforth with the coefficients of even steps (Zhang & Chen 2022, arXiv:2204.13902)."""

    def coefficients(t: list[float], i: int, order: int) -> tuple[Sequence[float], float]:
        return _FIXED_ADAMS[order]

    return _adams_bashforth(model, x, sigmas, extra_args, callback, min(max_order, 4), coefficients)


def _variable_adams(t: list[float], i: int, order: int) -> tuple[list[float], float]:
    """Adams-Bashforth for uneven steps, by the ratios of step widths."""
    return _variable_factors(t, i, order), 1.0


def _variable_factors(t: list[float], i: int, order: int) -> list[float]:
    h = t[i + 1] - t[i]
    h1 = t[i] - t[i - 1] if order > 1 else 0.0
    h2 = t[i - 1] - t[i - 2] if order > 2 else 0.0
    h3 = t[i - 2] - t[i - 3] if order > 3 else 0.0
    if order == 1:
        return [1.0]
    ratio = h / h1
    if order == 2:
        return [(2 + ratio) / 2, -ratio / 2]
    third = (1 - h / (3 * (h + h1)) * (h * (h + h1)) / (h1 * (h1 + h2))) / 2
    if order == 3:
        return [
            (2 + ratio) / 2 + third,
            -ratio / 2 - (1 + h1 / h2) * third,
            third * h1 / h2,
        ]
    fourth = (
        ((1 - h / (3 * (h + h1))) / 2 + (1 - h / (2 * (h + h1))) * h / (6 * (h + h1 + h2)))
        * (h * (h + h1) * (h + h1 + h2))
        / (h1 * (h1 + h2) * (h1 + h2 + h3))
    )
    steeper = h1 * (h1 + h2) / (h2 * (h2 + h3))
    return [
        (2 + ratio) / 2 + third + fourth,
        -ratio / 2 - (1 + h1 / h2) * third - (1 + h1 / h2 + steeper) * fourth,
        third * h1 / h2 + (h1 / h2 + steeper * (1 + h2 / h3)) * fourth,
        -fourth * steeper * h1 / h2,
    ]


@torch.no_grad()
def sample_ipndm_v(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    max_order: int = 4,
) -> Tensor:
    """iPNDM for uneven steps (arXiv:2204.13902, variable-step form of Zhou et al. 2023, arXiv:2312.00094)."""
    return _adams_bashforth(model, x, sigmas, extra_args, callback, min(max_order, 4), _variable_adams)


class _VPTime:
    """The continuous VP process whose sigmas run over [sigma_min, sigma_max]: sigma <-> its time.

    Times are float32: for sigmas beyond sigma_max they bunch up, and the coefficients show their rounding.
    """

    def __init__(self, sigma_min: float = 0.002, sigma_max: float = 80.0, epsilon: float = 1e-3) -> None:
        low, high = torch.log(torch.tensor([sigma_min, sigma_max]) ** 2 + 1)
        beta_d = 2 * (low / epsilon - high) / (epsilon - 1)
        self.beta_d, self.beta_min = float(beta_d), float(high - 0.5 * beta_d)

    def times(self, sigmas: Sequence[float]) -> list[float]:
        log_snr = (torch.tensor(sigmas) ** 2 + 1).log()
        return (((self.beta_min**2 + 2 * self.beta_d * log_snr).sqrt() - self.beta_min) / self.beta_d).tolist()

    def sigma_slope(self, t: np.ndarray) -> np.ndarray:
        """d sigma / d time."""
        log_alpha = -(0.5 * self.beta_d * t**2 + self.beta_min * t)
        alpha = np.exp(log_alpha)
        return 0.5 * (self.beta_d * t + self.beta_min) / np.sqrt(alpha * (1 - alpha))


@lru_cache(maxsize=1)
def _vp_time() -> _VPTime:
    return _VPTime()


DEIS_POINTS = 10000
QUADRATURE_NODES = 32


def deis_coefficients(sigmas: Sequence[float], i: int, order: int) -> list[float]:
    """Factors of the last `order` slopes for step `i`: integrals of the Lagrange basis in VP time.

    The known method ("tab") takes the sum over 10,000 points, both ends included, times width/10,000; that sum
    is (Euler-Maclaurin) the integral times 9,999/10,000 plus half the values at the ends, which is what is
    computed here, from 32 points.
    """
    process = _vp_time()
    times = process.times(sigmas[i - order + 1 : i + 2])
    start, end = times[-2], times[-1]
    past = times[-2::-1]
    nodes, weights = _gauss_legendre(QUADRATURE_NODES)
    width = end - start
    t = np.concatenate([start + width / 2 * (nodes + 1), [start, end]])
    slope = process.sigma_slope(t)
    factors = []
    for j in range(order):
        values = slope.copy()
        for k in range(order):
            if k != j:
                values *= (t - past[k]) / (past[j] - past[k])
        integral = (values[:-2] * weights).sum() * width / 2
        ends = (values[-2] + values[-1]) / 2 * width
        factors.append(float((integral * (DEIS_POINTS - 1) + ends) / DEIS_POINTS))
    return factors


@torch.no_grad()
def sample_deis(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    max_order: int = 3,
    deis_mode: str = "tab",
) -> Tensor:
    """DEIS with tabulated Adams-Bashforth coefficients in VP time (Zhang & Chen 2022, arXiv:2204.13902)."""
    if deis_mode != "tab":
        raise ValueError(f"deis_mode {deis_mode!r}: only 'tab' exists")

    def coefficients(t: list[float], i: int, order: int) -> tuple[list[float], None]:
        return ([t[i + 1] - t[i]] if order == 1 else deis_coefficients(t, i, order)), None

    return _adams_bashforth(model, x, sigmas, extra_args, callback, max_order, coefficients)


@torch.no_grad()
def sample_gradient_estimation(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    ge_gamma: float = 2.0,
    cfg_pp: bool = False,
) -> Tensor:
    """Gradient estimation (Permenter & Yuan 2023, arXiv:2306.04848): Euler, corrected by the change of slope."""
    run = Run(model, x, sigmas, extra_args, callback)
    uncond = run.keep_uncond() if cfg_pp else None
    slope_before = None
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        if n == 0:
            x = denoised
            continue
        slope = to_d(x, s, uncond() if uncond is not None else denoised)
        stepped = denoised + slope * n if cfg_pp else x + slope * (n - s)
        if slope_before is not None:
            stepped = stepped + (slope - slope_before) * (ge_gamma - 1) * (n - s)
        x, slope_before = stepped, slope
    return x


@torch.no_grad()
def sample_gradient_estimation_cfg_pp(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    ge_gamma: float = 2.0,
) -> Tensor:
    """Gradient estimation on CFG++: slopes of the negative."""
    return sample_gradient_estimation(model, x, sigmas, extra_args, callback, disable, ge_gamma=ge_gamma, cfg_pp=True)
