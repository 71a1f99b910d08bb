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


def _alpha(s: float) -> float:
    return 1 / math.sqrt(1 + s * s)


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
    lams = [-math.log(s) for s in run.sigmas]

    def evaluate(y: Tensor, i: int) -> Tensor:
        s = run.sigmas[i]
        latent = y / _alpha(s)
        denoised = run.denoise(latent, s)
        return denoised

    y = x * _alpha(run.sigmas[0])
    data = [evaluate(y, 0)]  # newest first
    run.report(0, x, data[0])
    for i in range(1, steps + 1):
        # warm up with the points there are, and end with the steps that are left
        order = max(1, min(i, max_order, steps + 1 - i))
        s, n = run.sigmas[i - 1], run.sigmas[i]
        h = lams[i] - lams[i - 1]
        past = [lams[i - 1 - k] for k in range(order)]
        ratios, predictor, corrector, basis = _coefficients(past, h, order, variant)
        alpha = _alpha(n)
        differences = [(data[k + 1] - data[0]) / r for k, r in enumerate(ratios)]
        base = y * (n * alpha / (s * _alpha(s))) - data[0] * (alpha * math.expm1(-h))
        y = base
        for weight, difference in zip(predictor, differences):
            y = torch.add(y, difference, alpha=-alpha * basis * float(weight))
        if i == steps:
            break
        now = evaluate(y, i)
        y = base
        for weight, difference in zip(corrector, [*differences, now - data[0]]):
            y = torch.add(y, difference, alpha=-alpha * basis * float(weight))
        data = [now, *data[: MAX_ORDER - 1]]
        run.report(i, y, now)
    return y / _alpha(run.sigmas[-1])


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
