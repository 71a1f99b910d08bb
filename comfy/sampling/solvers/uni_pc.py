"""UniPC: unified predictor-corrector (Zhao et al. 2023, arXiv:2302.04867), on D, in VP coordinates.

y = x / sqrt(1 + s^2) with signal level alpha = 1/sqrt(1 + s^2) and noise level s * alpha; lam = -ln s.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comfy.sampling.solvers.common import Callback, ModelFunction, Run

MAX_ORDER = 3
# the last sigma may not be 0 in lam; what is put in its place
LAST_SIGMA = 0.001


def _vp_levels(sigmas: list[float]) -> tuple[list[float], list[float], list[float]]:
    """(alpha, noise level, lam) of each sigma, in float32.

    At small sigmas the noise level sqrt(1 - alpha^2) keeps only a digit or two, which moves lam at the end of a
    run visibly; the method's known results have that rounding in them.
    """
    levels = torch.tensor(sigmas, dtype=torch.float32)
    log_alpha = 0.5 * torch.log(1 / (levels * levels + 1))
    std = torch.sqrt(1 - torch.exp(2 * log_alpha))
    lam = log_alpha - 0.5 * torch.log(1 - torch.exp(2 * log_alpha))
    return log_alpha.exp().tolist(), std.tolist(), lam.tolist()


def _coefficients(
    lams: list[float], h: float, order: int, variant: str
) -> tuple[list[float], np.ndarray, np.ndarray, float]:
    """(ratios r, weights of the predictor, of the corrector, B(h)) for a step of width `h` in lam.

    `lams`: the last `order` points, newest first. The weights solve sum_j w_j r_j^(k-1) = b_k (paper, eq. 5-7).
    """
    ratios = [(lams[k] - lams[0]) / h for k in range(1, order)]
    hh = -h
    basis = hh if variant == "bh1" else math.expm1(hh)
    right_side = []
    phi = math.expm1(hh) / hh - 1
    factorial = 1
    for k in range(1, order + 1):
        right_side.append(phi * factorial / basis)
        factorial *= k + 1
        phi = phi / hh - 1 / factorial
    matrix = np.vander(np.array([*ratios, 1.0]), order, increasing=True).T
    b = np.array(right_side)
    if order == 1:
        predictor = np.zeros(0)
    elif order == 2:
        predictor = np.array([0.5])
    else:
        predictor = np.linalg.solve(matrix[:-1, :-1], b[:-1])
    corrector = np.array([0.5]) if order == 1 else np.linalg.solve(matrix, b)
    return ratios, predictor, corrector, basis


@torch.no_grad()
def sample_unipc(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = False,
    variant: str = "bh1",
) -> Tensor:
    """UniPC of order three; `variant`: "bh1" or "bh2", the paper's two choices of B(h).

    The callback sees y, and the last step together with the one before it. A run of one step does nothing.
    Writes LAST_SIGMA into the end of `sigmas` when that is 0: who scales the result afterwards has to know.
    """
    if variant not in ("bh1", "bh2"):
        raise ValueError(f"variant {variant!r}: expected 'bh1' or 'bh2'")
    if len(sigmas) <= 1:
        return x
    run = Run(model, x, sigmas, extra_args, callback)
    if run.sigmas[-1] == 0:
        run.sigmas[-1] = LAST_SIGMA
        sigmas[-1] = LAST_SIGMA
    steps = len(run)
    max_order = min(MAX_ORDER, steps - 1)
    alphas, stds, lams = _vp_levels(run.sigmas)

    def evaluate(y: Tensor, i: int) -> Tensor:
        s = run.sigmas[i]
        return run.denoise(y / alphas[i], s)

    y = x / math.sqrt(1 + run.sigmas[0] ** 2)
    data = [evaluate(y, 0)]  # newest first
    if max_order == 0:
        # one step leaves no point to extrapolate from: nothing is done
        run.report(0, y, data[0])
        return y / alphas[-1]
    run.report(0, y, data[0])
    for i in range(1, steps + 1):
        # warm up with the points there are, and end with the steps that are left
        order = max(1, min(i, max_order, steps + 1 - i))
        h = lams[i] - lams[i - 1]
        past = [lams[i - 1 - k] for k in range(order)]
        ratios, predictor, corrector, basis = _coefficients(past, h, order, variant)
        alpha = alphas[i]
        differences = [(data[k + 1] - data[0]) / r for k, r in enumerate(ratios)]
        base = y * (stds[i] / stds[i - 1]) - data[0] * (alpha * math.expm1(-h))
        y = base
        for weight, difference in zip(predictor, differences):
            y = torch.add(y, difference, alpha=-alpha * basis * float(weight))
        if i == steps:
            run.report(steps - 1, y, data[0])
            break
        now = evaluate(y, i)
        y = base
        for weight, difference in zip(corrector, [*differences, now - data[0]]):
            y = torch.add(y, difference, alpha=-alpha * basis * float(weight))
        data = [now, *data[: MAX_ORDER - 1]]
        if i < steps - 1:
            run.report(i, y, now)
    return y / alphas[-1]


@torch.no_grad()
def sample_unipc_bh2(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = False,
) -> Tensor:
    """UniPC with B(h) = e^h - 1."""
    return sample_unipc(model, x, sigmas, extra_args, callback, disable, variant="bh2")
