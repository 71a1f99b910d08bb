"""Where the noise of a run comes from. All rules are goldens' section 2; values are bit-identical on a CPU.

* initial noise: the global CPU generator seeded with the seed, float32, whatever device the model runs on
* noise of each step (ancestral samplers): a generator on the latent's device, seed+1 on a CPU
* Brownian noise (SDE samplers): increments of one Brownian path per seed, so that more steps refine a run
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comfy.nested_tensor import like, parts_of

SEED_RANGE = 2**64


def _draw(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, dtype=torch.float32, layout=like.layout, generator=generator, device="cpu")
    return noise.to(dtype=like.dtype)


def prepare_noise_inner(
    latent_image: Tensor, generator: torch.Generator, noise_inds: Sequence[int] | None = None
) -> Tensor:
    """Noise of `latent_image`'s shape and dtype, on the CPU.

    `noise_inds`: for each batch item the index of its draw; the draws 0..max are made one after the other, so
    item k of a batch can be repeated alone.
    """
    if noise_inds is None:
        return _draw(latent_image.shape, latent_image, generator)
    wanted, place = np.unique(np.asarray(noise_inds), return_inverse=True)
    shape = [1, *latent_image.shape[1:]]
    kept = []
    for index in range(int(wanted[-1]) + 1):
        noise = _draw(shape, latent_image, generator)
        if index in wanted:
            kept.append(noise)
    return torch.cat([kept[i] for i in place], dim=0)


def prepare_noise(latent_image: Any, seed: int, noise_inds: Sequence[int] | None = None) -> Any:
    """The initial noise of a run. Seeds the global generator, which later draws (churn) continue."""
    generator = torch.manual_seed(seed)
    parts = [prepare_noise_inner(part, generator, noise_inds) for part in parts_of(latent_image)]
    return like(latent_image, parts)


def no_noise(latent_image: Any) -> Any:
    """Zeros in the place of the initial noise, on the CPU: for latents that still hold noise."""
    zeros = [torch.zeros_like(part, device="cpu") for part in parts_of(latent_image)]
    return like(latent_image, zeros)


NoiseSampler = Callable[[Any, Any], Tensor]


def default_noise_sampler(x: Tensor, seed: int | None = None) -> NoiseSampler:
    """A function (sigma, sigma_next) -> standard normal noise like `x`, a new draw at each call.

    On a CPU the generator starts from seed+1: with the seed itself the first draw would repeat the initial
    noise. Seeds wrap at 2^64. Without a seed the global generator is used.
    """
    if seed is None:
        return lambda sigma, sigma_next: torch.randn_like(x)
    if x.device.type == "cpu":
        seed = (seed + 1) % SEED_RANGE
    generator = torch.Generator(device=x.device)
    generator.manual_seed(seed)
    size, dtype, layout, device = x.shape, x.dtype, x.layout, x.device

    def draw(sigma: Any, sigma_next: Any) -> Tensor:
        return torch.randn(size, dtype=dtype, layout=layout, device=device, generator=generator)

    return draw


class BatchedBrownianTree:
    """One Brownian path per seed on [t0, t1]; a list of seeds gives each batch item its own path.

    Called with two times it returns the increment of the path between them.
    """

    def __init__(self, x: Tensor, t0: Any, t1: Any, seed: int | Sequence[int] | None = None, cpu: bool = False) -> None:
        import torchsde

        # sigmas at the very ends miss the tree's ends by a rounding, which it complains about and corrects
        warnings.filterwarnings("ignore", message="Should have t[ab]", module="torchsde")
        low, high, self.sign = self._ordered(t0, t1)
        if seed is None:
            seed = int(torch.randint(0, 2**63 - 1, []).item())
        self.batched = not isinstance(seed, int)
        seeds = list(seed) if self.batched else [seed]
        if self.batched and len(seeds) != x.shape[0]:
            raise ValueError(f"{len(seeds)} seeds for a batch of {x.shape[0]}")
        self.device = x.device
        start = torch.zeros_like(x[0] if self.batched else x, device="cpu" if cpu else None)
        self.trees = [torchsde.BrownianTree(t0=low, w0=start, t1=high, entropy=s) for s in seeds]

    @staticmethod
    def _ordered(t0: Any, t1: Any) -> tuple[Any, Any, int]:
        return (t0, t1, 1) if t0 < t1 else (t1, t0, -1)

    def __call__(self, t0: Any, t1: Any) -> Tensor:
        low, high, sign = self._ordered(t0, t1)
        steps = [tree(low, high) for tree in self.trees]
        increment = torch.stack(steps) if self.batched else steps[0]
        return (increment * (self.sign * sign)).to(self.device)


class BrownianTreeNoiseSampler:
    """Standard normal noise for the step sigma -> sigma_next from one Brownian path in sigma.

    The value depends on the two sigmas and the seed alone, not on the order of calls: a run with other steps
    sees the same path. `transform` maps sigma to the path's time. `cpu`: build the path on the CPU, so that
    every device gives the same image.
    """

    def __init__(
        self,
        x: Tensor,
        sigma_min: Any,
        sigma_max: Any,
        seed: int | Sequence[int] | None = None,
        transform: Callable[[Any], Any] = lambda t: t,
        cpu: bool = False,
    ) -> None:
        self.transform = transform
        t0, t1 = self._time(sigma_min), self._time(sigma_max)
        self.tree = BatchedBrownianTree(x, t0, t1, seed, cpu=cpu)

    def _time(self, sigma: Any) -> Tensor:
        # float32 whatever is given: the path is rough, and times that differ in the last digit differ visibly
        return self.transform(torch.as_tensor(sigma, dtype=torch.float32, device="cpu"))

    def __call__(self, sigma: Any, sigma_next: Any) -> Tensor:
        t0, t1 = self._time(sigma), self._time(sigma_next)
        return self.tree(t0, t1) / (t1 - t0).abs().sqrt()
