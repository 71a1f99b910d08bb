"""What both trainings share: a time budget, a learning-rate curve, a moving average of the weights."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn


class Clock:
    """A wall-clock budget, so that a training ends when it was promised to, however busy the machine is."""

    def __init__(self, budget: float, used: float = 0.0):
        """`budget` and `used` (by an earlier, interrupted run) are seconds."""
        self.budget = budget
        self._started = time.monotonic() - used

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def share(self) -> float:
        """How much of the budget is used, 0..1."""
        return min(1.0, self.elapsed() / self.budget)

    def over(self) -> bool:
        return self.elapsed() >= self.budget


def learning_rate(peak: float, step: int, warm_up: int, share: float, floor: float = 0.02) -> float:
    """Linear warm-up over `warm_up` steps, then half a cosine over the time budget down to `floor` x peak."""
    cosine = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share))
    return peak * min(1.0, (step + 1) / warm_up) * cosine


class Average:
    """Exponential moving average of a module's parameters, warmed up so that early weights do not linger."""

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self.steps = 0
        self.values: dict[str, Tensor] = {k: v.detach().clone() for k, v in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        parameters = [p.detach() for _, p in module.named_parameters()]
        torch._foreach_lerp_(list(self.values.values()), parameters, 1 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            parameter.copy_(self.values[name])


def _orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Nearest (roughly) orthogonal matrices of [n, rows, columns] by Newton-Schulz iteration of degree five."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal, for matrices and filters (Jordan et al. 2024).

    Needs far fewer steps than Adam for networks like these, which is what counts on two cores.
    """

    def __init__(self, parameters, lr: float = 0.02, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault((p.shape[0], p[0].numel()), []).append(p)
            for (rows, columns), parameters in shapes.items():
                directions = []
                for p in parameters:
                    state = self.state[p]
                    if "buffer" not in state:
                        state["buffer"] = torch.zeros_like(p)
                    buffer = state["buffer"].lerp_(p.grad, 1 - group["momentum"])
                    directions.append(p.grad.lerp(buffer, group["momentum"]).reshape(rows, columns))
                steps = _orthogonal(torch.stack(directions)) * max(1.0, rows / columns) ** 0.5
                for p, direction in zip(parameters, steps):
                    p.add_(direction.view(p.shape), alpha=-group["lr"])
