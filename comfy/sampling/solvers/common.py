"""What every solver needs: the run (model, host sigmas, callback), the noise of a step, log-SNR coordinates.

Notation in the solvers, as in docs/sampling.md: `s` the sigma of this step, `n` the next one, `D` the
denoised latent at s, `lam` half the log signal-to-noise ratio, `h` the step in lam. Sigmas are read to the
host once per run; all coefficients are Python floats, so that a step needs no device synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

ModelFunction = Callable[..., Tensor]
Callback = Callable[[dict[str, Any]], None]
Sigmas = Tensor | Sequence[float]


class UnknownSolverTypeError(ValueError):
    """A solver variant that does not exist."""


def sigma_batch(x: Tensor, sigma: float) -> Tensor:
    """`sigma` for each item of the batch, float32 on x's device.

    The host's value stays attached as `host_sigma`, so that what compares sigmas (conditioning ranges) does
    not have to ask the device.
    """
    batch = torch.full((x.shape[0],), sigma, dtype=torch.float32, device=x.device)
    batch.host_sigma = sigma
    return batch


def host_sigma(timestep: Tensor) -> float:
    """The sigma of a batch made by `sigma_batch`; of any other tensor the first value (a device sync)."""
    known = getattr(timestep, "host_sigma", None)
    return float(timestep.flatten()[0]) if known is None else known


def float32(value: float) -> float:
    """`value` rounded to float32: what a sigma becomes when it is given to the model."""
    return torch.tensor(value, dtype=torch.float32).item()


class Run:
    """One sampling run: asks the model for denoised latents and reports each step to the callback."""

    def __init__(
        self,
        model: ModelFunction,
        x: Tensor,
        sigmas: Sigmas,
        extra_args: dict[str, Any] | None,
        callback: Callback | None,
    ) -> None:
        self.model = model
        self.extra_args = {} if extra_args is None else extra_args
        self.callback = callback
        self.sigmas: list[float] = sigmas.tolist() if isinstance(sigmas, Tensor) else list(sigmas)

    def __len__(self) -> int:
        return len(self.sigmas) - 1

    def steps(self) -> Iterator[tuple[int, float, float]]:
        """(index, sigma, next sigma) of each step."""
        for i in range(len(self)):
            yield i, self.sigmas[i], self.sigmas[i + 1]

    def denoise(self, x: Tensor, sigma: float) -> Tensor:
        """The model's denoised latent for `x` at noise level `sigma`."""
        return self.model(x, sigma_batch(x, sigma), **self.extra_args)

    def report(self, i: int, x: Tensor, denoised: Tensor, sigma_hat: float | None = None) -> None:
        """Tell the callback about step `i`: x as it went in, and what the model made of it."""
        if self.callback is not None:
            sigma = self.sigmas[i]
            self.callback(
                {
                    "x": x,
                    "i": i,
                    "sigma": torch.tensor(sigma),
                    "sigma_hat": torch.tensor(sigma if sigma_hat is None else sigma_hat),
                    "denoised": denoised,
                }
            )

    def keep_uncond(self) -> Callable[[], Tensor]:
        """Have the negative evaluated at every call; the returned function gives the last one's result."""
        kept: dict[str, Tensor] = {}

        def remember(args: dict[str, Any]) -> Tensor:
            kept["uncond"] = args["uncond_denoised"]
            return args["denoised"]

        options = dict(self.extra_args.get("model_options", {}))
        options["sampler_post_cfg_function"] = [*options.get("sampler_post_cfg_function", []), remember]
        options["disable_cfg1_optimization"] = True
        self.extra_args = {**self.extra_args, "model_options": options}
        return lambda: kept["uncond"]


class StepNoise:
    """Noise of the steps of a stochastic solver: `noise_sampler`, or the default for the run's seed.

    Sigmas are handed to the noise sampler as CPU scalars.
    """

    def __init__(self, run: Run, x: Tensor, noise_sampler: Callable[[Any, Any], Tensor] | None) -> None:
        self.run, self.x, self.noise_sampler = run, x, noise_sampler

    def __call__(self, sigma: float, sigma_next: float) -> Tensor:
        if self.noise_sampler is None:
            # made when first needed, and looked up where packs replace it
            from comfy.k_diffusion import sampling

            self.noise_sampler = sampling.default_noise_sampler(self.x, seed=self.run.extra_args.get("seed"))
        return self.noise_sampler(torch.tensor(sigma), torch.tensor(sigma_next))


def brownian_noise(
    run: Run,
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: Callable[[Any, Any], Tensor] | None,
    on_cpu: bool,
) -> StepNoise:
    """As StepNoise with a Brownian path over all of `sigmas` as default; `on_cpu`: same on every device."""
    if noise_sampler is None:
        from comfy.k_diffusion import sampling

        known = [s for s in run.sigmas if s > 0]
        noise_sampler = sampling.BrownianTreeNoiseSampler(
            x, min(known), max(run.sigmas), seed=run.extra_args.get("seed"), cpu=on_cpu
        )
    return StepNoise(run, x, noise_sampler)


def to_d(x: Tensor, sigma: Any, denoised: Tensor) -> Tensor:
    """The slope dx/dsigma of the probability-flow ODE (Karras et al. 2022, eq. 3)."""
    if isinstance(sigma, Tensor) and sigma.ndim:
        sigma = sigma.reshape(sigma.shape + (1,) * (x.ndim - sigma.ndim))
    return (x - denoised) / sigma


def euler_step(x: Tensor, denoised: Tensor, s: float, n: float) -> Tensor:
    """x + (n - s) * (x - D)/s, written as the mix of D and x that it is: exact at n = 0."""
    return torch.lerp(denoised, x, n / s)


def get_ancestral_step(sigma_from: Any, sigma_to: Any, eta: float = 1.0) -> tuple[Any, Any]:
    """(sigma to go down to, noise to add) so that the step from s ends at n with new noise.

    Works on floats and on tensors. eta 0: no noise.
    """
    if not eta:
        return sigma_to, 0.0
    variance = sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2
    if isinstance(variance, Tensor):
        up = torch.fmin(torch.as_tensor(sigma_to), eta * variance**0.5)
    else:
        # ascending sigmas have no such variance: then go all the way down and put n back as noise
        up = min(sigma_to, eta * math.sqrt(variance)) if variance >= 0 else sigma_to
    return (sigma_to**2 - up**2) ** 0.5, up


def flow_ancestral_step(s: float, n: float, eta: float) -> tuple[float, float, float]:
    """(down, scale, noise) of an ancestral step of a rectified flow: after the deterministic part to `down`,
    x = scale * x + noise * z has exactly the noise level n."""
    down = n * (1 + (n / s - 1) * eta)
    scale = (1 - n) / (1 - down)
    return down, scale, max(n**2 - down**2 * scale**2, 0.0) ** 0.5


def noised(model_sampling: Any | None, sigma: float, noise: Tensor, latent: Tensor) -> Tensor:
    """A clean latent brought to `sigma` by the model's own rule (without a model: noise is added)."""
    if model_sampling is None:
        return latent + noise * sigma
    return model_sampling.noise_scaling(torch.full((), sigma, device=noise.device), noise, latent)


def model_sampling_of(model: Any) -> Any | None:
    """The model's sampling object, also when it is patched; None if `model` is a bare function."""
    guider = getattr(model, "inner_model", None)
    patcher = getattr(guider, "model_patcher", None)
    if patcher is not None:
        return patcher.get_model_object("model_sampling")
    return getattr(getattr(guider, "inner_model", None), "model_sampling", None)


class LogSNR:
    """Half log signal-to-noise ratio of the model's process: -ln s, or ln((1-s)/s) for a rectified flow."""

    def __init__(self, model: Any) -> None:
        from comfy.sampling.parametrisation import CONST

        self.model_sampling = model_sampling_of(model)
        self.flow = isinstance(self.model_sampling, CONST)
        # how much stronger than 1 the noise of this model's training was (1 unless a flow says otherwise)
        self.noise_scale: float = getattr(self.model_sampling, "noise_scale", 1.0) if self.flow else 1.0

    def lam(self, sigma: float) -> float:
        """Infinite at the ends: inf at sigma 0, -inf at sigma 1 of a flow."""
        if sigma <= 0:
            return math.inf
        if not self.flow:
            return -math.log(sigma)
        return math.log((1 - sigma) / sigma) if sigma < 1 else -math.inf

    def sigma(self, lam: float) -> float:
        """Inverse of `lam`."""
        if not self.flow:
            return math.exp(-lam)
        return 1 / (1 + math.exp(lam)) if lam < 700 else 0.0

    def alpha(self, sigma: float) -> float:
        """Signal level at `sigma`: 1, or 1 - sigma for a flow."""
        return 1 - sigma if self.flow else 1.0

    def first_sigma_below_one(self, sigmas: list[float]) -> list[float]:
        """A flow that starts at pure noise has no finite lam there: start a hair later."""
        if self.flow and len(sigmas) > 1 and sigmas[0] >= 1:
            return [float32(self.model_sampling.percent_to_sigma(1e-4)), *sigmas[1:]]
        return sigmas
