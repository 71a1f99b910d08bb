"""Noise masks: the blend that keeps what the mask protects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeepUnmasked:
    """Inpainting around a denoiser: outside the mask the latent stays what it was.

    Before each evaluation x is replaced there by the clean latent noised to the present sigma (always with
    the run's first noise), after it the prediction by the clean latent.
    """

    def __init__(self, model_sampling: Any, latent_image: Tensor, noise: Tensor) -> None:
        self.model_sampling = model_sampling
        self.latent_image = latent_image
        self.noise = noise

    def before(self, x: Tensor, sigma: Tensor, mask: Tensor) -> Tensor:
        """x with the protected part noised anew to `sigma` [batch]."""
        protected = self.model_sampling.noise_scaling(
            sigma.reshape([sigma.shape[0]] + [1] * (self.noise.ndim - 1)), self.noise, self.latent_image
        )
        return torch.lerp(protected, x, mask.to(x.dtype))

    def after(self, denoised: Tensor, mask: Tensor) -> Tensor:
        """The prediction with the protected part as it was."""
        return torch.lerp(self.latent_image, denoised, mask.to(denoised.dtype))


class DifferentialDiffusion:
    """A mask function: each part of the latent joins in when its mask value says so (arXiv:2306.00950).

    A cell is painted from the step on at which the remaining share of the run falls to its mask value.
    `strength` below 1 mixes the binary mask with the mask itself. Set it as `denoise_mask_function` in the model
    options.
    """

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength

    def __call__(self, sigma: Tensor, denoise_mask: Tensor, extra_options: dict[str, Any]) -> Tensor:
        """sigma [batch]; the mask in the latent's shape, 1 where the latent may change from the start."""
        model_sampling = extra_options["model"].inner_model.model_sampling
        sigmas = extra_options["sigmas"]
        lowest = torch.maximum(model_sampling.sigma_min.to(sigmas.device), sigmas[-1])
        first, last, now = (model_sampling.timestep(s).float() for s in (sigmas[0], lowest, sigma.flatten()[0]))
        remaining = (now - last) / (first - last)
        binary = (denoise_mask >= remaining).to(denoise_mask.dtype)
        if self.strength < 1:
            return torch.lerp(denoise_mask, binary, self.strength)
        return binary
