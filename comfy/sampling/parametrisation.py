"""What a network predicts, and how its output becomes a denoised latent.

One class per parametrisation, mixed into a sigma table (`comfy.sampling.sigma_tables`). Shapes: `sigma` is
[batch]; `noise`, `model_input`, `model_output` and latents are [batch, channels, (frames,) height, width].
Everything is float32 on whatever device the tensors are.

Sources: Karras et al. 2022 (arXiv:2206.00364) for eps and edm, Salimans & Ho 2022 (arXiv:2202.00512) for v,
Liu et al. 2022 (arXiv:2209.03003) for rectified flow, Luo et al. 2023 (arXiv:2310.04378) for lcm.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_sigma(sigma: Tensor, ndim: int) -> Tensor:
    """`sigma` [batch] (or scalar) as [batch, 1, ...] with `ndim` axes, to broadcast over a latent."""
    if sigma.nelement() == 1:
        return sigma.reshape(())
    return sigma.reshape(sigma.shape[:1] + (1,) * (ndim - 1))


class EPS:
    """The network predicts the noise: denoised = x - sigma * output."""

    sigma_data: float = 1.0

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        """The latent `noise` scaled to what the network was trained on."""
        sigma = reshape_sigma(sigma, noise.ndim)
        return noise / (sigma**2 + self.sigma_data**2) ** 0.5

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        """Denoised latent from the network's output and the unscaled latent `model_input`."""
        return model_input - model_output * reshape_sigma(sigma, model_output.ndim)

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, max_denoise: bool = False) -> Tensor:
        """`latent_image` noised to `sigma`; `max_denoise`: start of a full run, where variance is kept."""
        sigma = reshape_sigma(sigma, noise.ndim)
        scale = torch.sqrt(1.0 + sigma**2) if max_denoise else sigma
        return noise * scale + latent_image

    def inverse_noise_scaling(self, sigma: Tensor, latent: Tensor) -> Tensor:
        """What is left to do to the result after the last sigma."""
        return latent


class V_PREDICTION(EPS):
    """The network predicts the velocity v."""

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        var = sigma**2 + self.sigma_data**2
        return model_input * self.sigma_data**2 / var - model_output * sigma * self.sigma_data / var**0.5


class V_PREDICTION_DDPM(EPS):
    """Velocity on unscaled input (CogVideoX)."""

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        return noise

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        return (model_input - model_output * sigma) / (sigma**2 + 1.0) ** 0.5


class EDM(V_PREDICTION):
    """Karras preconditioning: as v with the opposite sign of the output."""

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        sigma = reshape_sigma(sigma, model_output.ndim)
        var = sigma**2 + self.sigma_data**2
        return model_input * self.sigma_data**2 / var + model_output * sigma * self.sigma_data / var**0.5


class X0(EPS):
    """The network predicts the clean latent itself."""

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        return model_output


class LCM(EPS):
    """Noise prediction with the consistency model's boundary condition (skip connection at small t)."""

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        timestep = reshape_sigma(self.timestep(sigma), model_output.ndim).to(model_output.dtype)
        x0 = super().calculate_denoised(sigma, model_output, model_input)
        scaled_t, data = timestep * 10.0, 0.5
        c_skip = data**2 / (scaled_t**2 + data**2)
        c_out = scaled_t / (scaled_t**2 + data**2) ** 0.5
        return c_out * x0 + c_skip * model_input


class IMG_TO_IMG(X0):
    """A one-step image-to-image network (Lotus): sees the latent as it is, starts from it without noise."""

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        return noise

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, max_denoise: bool = False) -> Tensor:
        return latent_image


class CONST:
    """Rectified flow: x = sigma * noise + (1 - sigma) * latent; the network predicts noise - latent.

    `noise_scale` is the standard deviation of the noise the network was trained with (1 but for HiDream-O1).
    """

    noise_scale: float = 1.0

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        return noise

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        return model_input - model_output * reshape_sigma(sigma, model_output.ndim)

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, max_denoise: bool = False) -> Tensor:
        sigma = reshape_sigma(sigma, noise.ndim)
        if self.noise_scale != 1.0:
            noise = noise * self.noise_scale
        return sigma * noise + (1.0 - sigma) * latent_image

    def inverse_noise_scaling(self, sigma: Tensor, latent: Tensor) -> Tensor:
        return latent / (1.0 - reshape_sigma(sigma, latent.ndim))


class IMG_TO_IMG_FLOW(CONST):
    """Flow from one image to another: starts from the latent itself, output is the clean latent."""

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        return model_output

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, max_denoise: bool = False) -> Tensor:
        return latent_image

    def inverse_noise_scaling(self, sigma: Tensor, latent: Tensor) -> Tensor:
        return latent


class COSMOS_RFLOW(EPS):
    """Rectified flow in variance-exploding coordinates (Cosmos Predict 2): r = sigma / (sigma + 1).

    Noised to sigma at any start: these coordinates keep no variance.
    """

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, max_denoise: bool = False) -> Tensor:
        return noise * reshape_sigma(sigma, noise.ndim) + latent_image

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        ratio = reshape_sigma(sigma / (sigma + 1.0), noise.ndim)
        return noise * (1.0 - ratio)

    def calculate_denoised(self, sigma: Tensor, model_output: Tensor, model_input: Tensor) -> Tensor:
        ratio = reshape_sigma(sigma / (sigma + 1.0), model_output.ndim)
        return model_input * (1.0 - ratio) - model_output * ratio
