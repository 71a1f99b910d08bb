"""Schedulers: which sigmas a run of n steps visits. All return float32 [about n+1] on the CPU, descending.

One registry, `SCHEDULER_HANDLERS`: name -> SchedulerHandler. Packs add entries to it at run time.
Sources: Karras et al. 2022, arXiv:2206.00364 (karras); Sabour et al. 2024, arXiv:2404.14507 (kl_optimal);
Song et al. 2020, arXiv:2010.02502 (ddim_uniform); Lee et al. 2024, arXiv:2407.12173 (beta);
Polyak et al. 2024, arXiv:2410.13720 (linear_quadratic).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class UnknownSchedulerError(ValueError):
    """No scheduler of that name."""


class SchedulerHandler(NamedTuple):
    """`use_ms`: the handler takes (model_sampling, steps), else (n=, sigma_min=, sigma_max=)."""

    handler: Callable[..., Tensor]
    use_ms: bool = True


def append_zero(sigmas: Tensor) -> Tensor:
    """`sigmas` with a final 0."""
    return torch.cat([sigmas, sigmas.new_zeros([1])])


def get_sigmas_karras(n: int, sigma_min: float, sigma_max: float, rho: float = 7.0, device: Any = "cpu") -> Tensor:
    """n values evenly spaced in sigma^(1/rho), then 0."""
    ramp = torch.linspace(0, 1, n, device=device)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return append_zero((high + ramp * (low - high)) ** rho).to(device)


def get_sigmas_exponential(n: int, sigma_min: float, sigma_max: float, device: Any = "cpu") -> Tensor:
    """n values evenly spaced in log sigma, then 0."""
    return append_zero(torch.linspace(math.log(sigma_max), math.log(sigma_min), n, device=device).exp())


def get_sigmas_polyexponential(
    n: int, sigma_min: float, sigma_max: float, rho: float = 1.0, device: Any = "cpu"
) -> Tensor:
    """n values following a power `rho` of the ramp in log sigma, then 0."""
    ramp = torch.linspace(1, 0, n, device=device) ** rho
    return append_zero(torch.exp(ramp * (math.log(sigma_max) - math.log(sigma_min)) + math.log(sigma_min)))


def get_sigmas_vp(
    n: int, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3, device: Any = "cpu"
) -> Tensor:
    """n values of the continuous VP process (Song et al. 2021, arXiv:2011.13456), then 0."""
    t = torch.linspace(1, eps_s, n, device=device)
    return append_zero(torch.sqrt(torch.special.expm1(beta_d * t**2 / 2 + beta_min * t)))


def get_sigmas_laplace(
    n: int, sigma_min: float, sigma_max: float, mu: float = 0.0, beta: float = 0.5, device: Any = "cpu"
) -> Tensor:
    """n values with log-SNR of Laplace distribution (Hang et al. 2024, arXiv:2407.03297); no final 0."""
    tiny = 1e-5
    x = torch.linspace(0, 1, n, device=device)
    centred = 0.5 - x
    lam = mu - beta * torch.sign(centred) * torch.log(1 - 2 * torch.abs(centred) + tiny)
    return torch.exp(lam).clamp(min=sigma_min, max=sigma_max)


def simple_scheduler(model_sampling: Any, steps: int) -> Tensor:
    """n entries of the table at even distances, from its end."""
    table = model_sampling.sigmas.detach().cpu()
    stride = len(table) / steps
    picked = [table[-(1 + int(i * stride))] for i in range(steps)]
    return append_zero(torch.stack(picked)) if picked else table.new_zeros([1])


def ddim_scheduler(model_sampling: Any, steps: int) -> Tensor:
    """Every (L//n)-th entry of the table from its second: often longer than n+1, and not from sigma_max."""
    table = model_sampling.sigmas.detach().cpu()
    stride = max(len(table) // steps, 1)
    # a table that starts at 0 already (within 1e-5) needs no 0 of its own
    first = [] if math.isclose(float(table[1]), 0, abs_tol=0.00001) else [0.0]
    values = first + table[1::stride].tolist()
    return torch.tensor(values[::-1])


def normal_scheduler(model_sampling: Any, steps: int, sgm: bool = False, floor: bool = False) -> Tensor:
    """n sigmas at even distances in timestep. `sgm`: as if n+1, without the last."""
    start = model_sampling.timestep(model_sampling.sigma_max).detach().cpu().float()
    end = model_sampling.timestep(model_sampling.sigma_min).detach().cpu().float()
    add_zero = True
    if sgm:
        timesteps = torch.linspace(start, end, steps + 1)[:-1]
    else:
        if math.isclose(float(model_sampling.sigma(end)), 0, abs_tol=0.00001):
            steps, add_zero = steps + 1, False
        timesteps = torch.linspace(start, end, steps)
    sigmas = [float(model_sampling.sigma(t)) for t in timesteps] + [0.0] * add_zero
    return torch.tensor(sigmas, dtype=torch.float32)


def sgm_uniform_scheduler(model_sampling: Any, steps: int) -> Tensor:
    """Even in timestep with the end left out (Stability's generative-models)."""
    return normal_scheduler(model_sampling, steps, sgm=True)


def beta_scheduler(model_sampling: Any, steps: int, alpha: float = 0.6, beta: float = 0.6) -> Tensor:
    """Table entries at the quantiles of a beta distribution: dense at both ends."""
    from scipy.stats import beta as beta_distribution

    table = model_sampling.sigmas.detach().cpu()
    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    indices = np.rint(beta_distribution.ppf(quantiles, alpha, beta) * (len(table) - 1))
    kept = [int(v) for i, v in enumerate(indices) if i == 0 or v != indices[i - 1]]
    return append_zero(table[kept])


def linear_quadratic_schedule(
    model_sampling: Any, steps: int, threshold_noise: float = 0.025, linear_steps: int | None = None
) -> Tensor:
    """Movie Gen: small linear steps down to 1 - threshold, then quadratic ones."""
    if steps == 1:
        return torch.tensor([1.0, 0.0]) * model_sampling.sigma_max.detach().cpu()
    linear_steps = steps // 2 if linear_steps is None else linear_steps
    slope = threshold_noise / linear_steps
    # the parabola a*i^2 + b*i + c that continues the line with its slope and reaches 1 at `steps`
    excess = linear_steps - threshold_noise * steps
    quadratic_steps = steps - linear_steps
    a = excess / (linear_steps * quadratic_steps**2)
    b = slope - 2 * excess / quadratic_steps**2
    c = a * linear_steps**2
    removed = [i * slope for i in range(linear_steps)]
    removed += [a * i**2 + b * i + c for i in range(linear_steps, steps)]
    levels = [1.0 - r for r in removed] + [0.0]
    return torch.tensor(levels) * model_sampling.sigma_max.detach().cpu()


def kl_optimal_scheduler(n: int, sigma_min: float, sigma_max: float) -> Tensor:
    """tan of a line between the arctangents of the two ends (Align Your Steps, arXiv:2404.14507, eq. 2)."""
    ramp = torch.arange(n, dtype=torch.float32).div_(n - 1) if n != 1 else torch.full((1,), math.nan)
    ends = math.atan(sigma_min), math.atan(sigma_max)
    return append_zero((ramp * ends[0] + (1 - ramp) * ends[1]).tan())


# Half log signal-to-noise ratios that a logit-normal schedule keeps within: noisiest, cleanest.
LOGIT_LIMITS = (9.0, -7.5)


def logit_normal_schedule(n: int, mean: float, deviation: float) -> Tensor:
    """n quantiles, from the noisiest on, of a flow's noise levels whose logit is normally distributed; then 0."""
    uniform = torch.arange(n, 0, -1, dtype=torch.float64) / n
    logits = (mean + deviation * torch.special.ndtri(uniform)).clamp(LOGIT_LIMITS[1], LOGIT_LIMITS[0])
    return append_zero(torch.sigmoid(logits).float())


SCHEDULER_HANDLERS: dict[str, SchedulerHandler] = {
    "simple": SchedulerHandler(simple_scheduler),
    "sgm_uniform": SchedulerHandler(sgm_uniform_scheduler),
    "karras": SchedulerHandler(get_sigmas_karras, use_ms=False),
    "exponential": SchedulerHandler(get_sigmas_exponential, use_ms=False),
    "ddim_uniform": SchedulerHandler(ddim_scheduler),
    "beta": SchedulerHandler(beta_scheduler),
    "normal": SchedulerHandler(normal_scheduler),
    "linear_quadratic": SchedulerHandler(linear_quadratic_schedule),
    "kl_optimal": SchedulerHandler(kl_optimal_scheduler, use_ms=False),
}
SCHEDULER_NAMES: list[str] = list(SCHEDULER_HANDLERS)


def calculate_sigmas(model_sampling: Any, scheduler_name: str, steps: int) -> Tensor:
    """The schedule `scheduler_name` for `steps` steps: float32 on the CPU, usually [steps+1].

    Raises UnknownSchedulerError for a name that is not registered.
    """
    handler = SCHEDULER_HANDLERS.get(scheduler_name)
    if handler is None:
        raise UnknownSchedulerError(f"scheduler {scheduler_name!r} is none of {', '.join(SCHEDULER_HANDLERS)}")
    if handler.use_ms:
        return handler.handler(model_sampling, steps)
    return handler.handler(
        n=steps, sigma_min=float(model_sampling.sigma_min), sigma_max=float(model_sampling.sigma_max)
    )
