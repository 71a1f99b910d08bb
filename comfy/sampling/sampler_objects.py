"""SAMPLER objects: a solver with its options, and the denoiser it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comfy import interrupt
from comfy.k_diffusion import sampling as k_diffusion_sampling
from comfy.sampling.masks import KeepUnmasked
from comfy.sampling.solvers import SAMPLERS, UnknownSamplerError


class KSamplerX0Inpaint:
    """The denoiser a solver calls: the guider, and around it the noise mask if there is one.

    `inner_model` is the guider; `latent_image` and `noise` are set by KSAMPLER.
    """

    def __init__(self, model: Any, sigmas: Tensor) -> None:
        self.inner_model = model
        self.sigmas = sigmas
        self.latent_image: Tensor | None = None
        self.noise: Tensor | None = None

    def __call__(
        self,
        x: Tensor,
        sigma: Tensor,
        denoise_mask: Tensor | None = None,
        model_options: dict[str, Any] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        interrupt.throw_exception_if_processing_interrupted()
        options = model_options or {}
        if denoise_mask is None:
            return self.inner_model(x, sigma, model_options=options, seed=seed)
        if "denoise_mask_function" in options:
            extra = {"model": self.inner_model, "sigmas": self.sigmas}
            denoise_mask = options["denoise_mask_function"](sigma, denoise_mask, extra_options=extra)
        keep = KeepUnmasked(self.inner_model.inner_model, self.latent_image, self.noise)
        x = keep.before(x, sigma, denoise_mask)
        return keep.after(self.inner_model(x, sigma, model_options=options, seed=seed), denoise_mask)


class Sampler:
    """What SAMPLER sockets carry; subclasses have `sample`."""

    def sample(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the sampler; signature of KSAMPLER.sample."""
        raise NotImplementedError(f"{type(self).__name__} has no sample method")

    def max_denoise(self, model_wrap: Any, sigmas: Tensor) -> bool:
        """Whether the run starts at full noise (within 1e-5: some schedules miss sigma_max by a rounding)."""
        max_sigma = float(model_wrap.inner_model.model_sampling.sigma_max)
        sigma = float(sigmas[0])
        return math.isclose(max_sigma, sigma, rel_tol=1e-05) or sigma > max_sigma


class KSAMPLER(Sampler):
    """A solver function with its options as a SAMPLER.

    `inpaint_options`: {"random": True} takes fresh noise (seed+1) for the protected part of a masked run.
    """

    def __init__(
        self,
        sampler_function: Callable[..., Tensor],
        extra_options: dict[str, Any] | None = None,
        inpaint_options: dict[str, Any] | None = None,
    ) -> None:
        self.sampler_function = sampler_function
        self.extra_options = extra_options or {}
        self.inpaint_options = inpaint_options or {}

    def sample(
        self,
        model_wrap: Any,
        sigmas: Tensor,
        extra_args: dict[str, Any],
        callback: Callable[..., Any] | None,
        noise: Tensor,
        latent_image: Tensor | None = None,
        denoise_mask: Tensor | None = None,
        disable_pbar: bool = False,
    ) -> Tensor:
        """Noise the latent to sigmas[0], solve down to sigmas[-1]; `callback(step, x0, x, total_steps)`."""
        # a solver may write into its schedule (UniPC does); the caller's stays as it is
        sigmas = sigmas.clone()
        extra_args["denoise_mask"] = denoise_mask
        denoiser = KSamplerX0Inpaint(model_wrap, sigmas)
        denoiser.latent_image = latent_image
        denoiser.noise = noise
        if self.inpaint_options.get("random", False):
            generator = torch.manual_seed((extra_args.get("seed", 41) + 1) % 2**64)
            fresh = torch.randn(noise.shape, generator=generator, device="cpu")
            denoiser.noise = fresh.to(noise.dtype).to(noise.device)
        model_sampling = model_wrap.inner_model.model_sampling
        full = self.max_denoise(model_wrap, sigmas)
        x = model_sampling.noise_scaling(sigmas[0], noise, latent_image, full)

        report = None
        if callback is not None:
            total = len(sigmas) - 1

            def report(step: dict[str, Any]) -> None:
                callback(step["i"], step["denoised"], step["x"], total)

        samples = self.sampler_function(
            denoiser,
            x,
            sigmas,
            extra_args=extra_args,
            callback=report,
            disable=disable_pbar,
            **self.extra_options,
        )
        return model_sampling.inverse_noise_scaling(sigmas[-1], samples)


def ksampler(
    sampler_name: str,
    extra_options: dict[str, Any] | None = None,
    inpaint_options: dict[str, Any] | None = None,
) -> KSAMPLER:
    """The SAMPLER of that name: a registered one, or `sample_<name>` that a pack put into k_diffusion.sampling.

    Raises UnknownSamplerError.
    """
    entry = SAMPLERS.get(sampler_name)
    function = getattr(k_diffusion_sampling, f"sample_{sampler_name}", None)
    if entry is not None and (function is None or entry.adapted):
        function = entry.function
    if function is None:
        raise UnknownSamplerError(f"sampler {sampler_name!r} is none of {', '.join(SAMPLERS)}")
    if entry is not None and entry.random_inpaint_noise:
        inpaint_options = {"random": True, **(inpaint_options or {})}
    return KSAMPLER(function, extra_options, inpaint_options)


def sampler_object(name: str) -> KSAMPLER:
    """The SAMPLER of that name with its default options."""
    return ksampler(name)
