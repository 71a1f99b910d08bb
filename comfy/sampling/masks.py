"""Noise masks: the blend that keeps what the mask protects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeepUnmasked:
    """Inpainting around a denoiser: outside the mask the latent stays what it was.

    Before each evaluation x is replaced there by the clean latent noised to the present sigma (always with
    the run's first noise; models may want it as it is), after it the prediction by the clean latent.
    """

    def __init__(self, model: Any, latent_image: Tensor, noise: Tensor) -> None:
        self.model = model
        self.latent_image = latent_image
        self.noise = noise

    def before(self, x: Tensor, sigma: Tensor, mask: Tensor) -> Tensor:
        """x with the protected part noised anew to `sigma` [batch]."""
        protected = self.model.scale_latent_inpaint(x=x, sigma=sigma, noise=self.noise, latent_image=self.latent_image)
        return torch.lerp(protected, x, mask.to(x.dtype))

    def after(self, denoised: Tensor, mask: Tensor) -> Tensor:
        """The prediction with the protected part as it was."""
        return torch.lerp(self.latent_image, denoised, mask.to(denoised.dtype))
