"""Steps of sampling that are not computed: while little changes, the network's last result is used again.

Source: Zhou et al. 2025, "Less is Enough: Training-Free Video Diffusion Acceleration via Runtime-Adaptive Caching"
(EasyCache): how much the output changes per change of the input is about constant from step to step, so the change of
the input predicts that of the output. Predicted changes are summed up; as long as the sum stays below a threshold, the
input plus the last computed difference stands for the output.

`EasyCache` sits around the network itself, `LazyCache` around the whole guided prediction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy.patcher_extension import WrappersMP
from comfy.sampling.solvers.common import host_sigma

log = logging.getLogger(__name__)

KEY = "step_cache"
# Changes are measured on every eighth row and column.
EVERY = 8


def thinned(x: Tensor) -> Tensor:
    """Every eighth cell along the last two axes."""
    return x[..., ::EVERY, ::EVERY]


class ChangeMeter:
    """Predicts how much the output would change, and decides whether to compute it."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.forget()

    def forget(self) -> None:
        """Start of a run."""
        self.last_input: Tensor | None = None
        self.last_output: Tensor | None = None
        self.rate: float | None = None  # change of the output per change of the input
        self.size = 0.0  # of the last output
        self.sum = 0.0

    def may_reuse(self, x: Tensor) -> bool:
        """Whether the last result is near enough for input `x`. Counts `x` as seen."""
        seen, self.last_input = self.last_input, thinned(x).clone()
        if seen is None or seen.shape != self.last_input.shape:
            self.rate, self.last_output, self.sum = None, None, 0.0
            return False
        self.input_change = float((self.last_input - seen).abs().mean())
        if self.rate is None or self.size == 0.0:
            return False
        self.sum += self.rate * self.input_change / self.size
        if self.sum < self.threshold:
            return True
        self.sum = 0.0
        return False

    def computed(self, output: Tensor) -> None:
        """What was computed for the input seen last."""
        now = thinned(output).clone()
        before, self.last_output = self.last_output, now
        self.size = float(now.abs().mean())
        if before is not None and before.shape == now.shape and getattr(self, "input_change", 0.0) > 0.0:
            self.rate = float((now - before).abs().mean()) / self.input_change


class StepCache:
    """What both caches share: the part of sampling they act in, and counters for the log."""

    def __init__(self, threshold: float, start_percent: float, end_percent: float, verbose: bool = False):
        self.meter = ChangeMeter(threshold)
        self.start_percent, self.end_percent = start_percent, end_percent
        self.verbose = verbose
        self.start, self.end = float("inf"), 0.0
        self.steps = self.reused = 0

    def around_sampling(self, executor: Callable, *args: Any, **kwargs: Any) -> Any:
        """Wrapper OUTER_SAMPLE: everything is forgotten before and after a run."""
        sampling = executor.class_obj.model_patcher.get_model_object("model_sampling")
        self.start = float(sampling.percent_to_sigma(self.start_percent))
        self.end = float(sampling.percent_to_sigma(self.end_percent))
        self.forget()
        try:
            return executor(*args, **kwargs)
        finally:
            if self.steps:
                level = logging.INFO if self.verbose else logging.DEBUG
                log.log(level, "%s: %d of %d evaluations reused", type(self).__name__, self.reused, self.steps)
            self.forget()

    def forget(self) -> None:
        self.meter.forget()
        self.steps = self.reused = 0

    def active(self, sigma: Tensor) -> bool:
        return self.end < host_sigma(sigma) <= self.start

    def add_to(self, patcher: Any) -> None:
        """Put the cache into a patcher."""
        patcher.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, self.around_sampling)


class LazyCache(StepCache):
    """Around the guided prediction: works with every model and sampler."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.difference: Tensor | None = None
        super().__init__(*args, **kwargs)

    def forget(self) -> None:
        super().forget()
        self.difference = None

    def around_prediction(self, executor: Callable, x: Tensor, timestep: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Wrapper PREDICT_NOISE."""
        if not self.active(timestep):
            return executor(x, timestep, *args, **kwargs)
        self.steps += 1
        if self.meter.may_reuse(x) and self.difference is not None:
            self.reused += 1
            return x + self.difference
        output = executor(x, timestep, *args, **kwargs)
        self.difference = output - x
        self.meter.computed(output)
        return output

    def add_to(self, patcher: Any) -> None:
        super().add_to(patcher)
        patcher.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, KEY, self.around_prediction)


class EasyCache(StepCache):
    """Around the network: conditionings have differences of their own, and one decision per step."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.differences: dict[Any, Tensor] = {}
        self.sigma: float | None = None
        self.reusing = False
        super().__init__(*args, **kwargs)

    def forget(self) -> None:
        super().forget()
        self.differences = {}
        self.sigma, self.reusing = None, False

    def around_network(self, executor: Callable, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Wrapper DIFFUSION_MODEL."""
        options = kwargs.get("transformer_options") or {}
        sigmas, names = options.get("sigmas"), options.get("uuids")
        if sigmas is None or not names or not self.active(sigmas):
            return executor(x, *args, **kwargs)
        # The first call of a step decides, by the first conditioning in it.
        sigma, first = host_sigma(sigmas), False
        if sigma != self.sigma:
            self.sigma, first = sigma, True
            self.steps += 1
            self.reusing = self.meter.may_reuse(x.chunk(len(names))[0])
            self.reused += self.reusing
        if self.reusing and all(self._fits(name, x, len(names)) for name in names):
            parts = x.chunk(len(names))
            return torch.cat(
                [part[:, : self.differences[n].shape[1]] + self.differences[n] for n, part in zip(names, parts)]
            )
        output = executor(x, *args, **kwargs)
        for name, part, given in zip(names, output.chunk(len(names)), x.chunk(len(names))):
            # What is concatenated to the latent comes behind it.
            self.differences[name] = part - given[:, : part.shape[1]]
        if first:
            self.meter.computed(output.chunk(len(names))[0])
        return output

    def _fits(self, name: Any, x: Tensor, count: int) -> bool:
        known = self.differences.get(name)
        return known is not None and known.shape[0] * count == x.shape[0] and known.shape[2:] == x.shape[2:]

    def add_to(self, patcher: Any) -> None:
        super().add_to(patcher)
        patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, self.around_network)
