"""Noise masks: to the latent's shape, and the blend that keeps what the mask protects."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def fit_batch(tensor: Tensor, batch_size: int) -> Tensor:
    """The first `batch_size` items, repeated from the start when there are too few."""
    if tensor.shape[0] > batch_size:
        return tensor[:batch_size]
    if tensor.shape[0] < batch_size:
        times = -(-batch_size // tensor.shape[0])
        return tensor.repeat([times] + [1] * (tensor.ndim - 1))[:batch_size]
    return tensor


def reshape_mask(input_mask: Tensor, output_shape: Any) -> Tensor:
    """A mask [(batch,) height, width] (or with channel and frame axes) resized to a latent's shape.

    For a video latent the mask's batch is its time axis. Interpolation is linear without antialias.
    """
    axes = len(output_shape) - 2
    if axes == 1:
        mask = input_mask.reshape(-1, 1, input_mask.shape[-1])
    elif axes == 3:
        frames = 1 if input_mask.ndim < 5 else input_mask.shape[-3]
        if input_mask.ndim < 5:
            mask = input_mask.reshape(1, 1, -1, *input_mask.shape[-2:])
        else:
            mask = input_mask.reshape(-1, 1, frames, *input_mask.shape[-2:])
    else:
        mask = input_mask.reshape(-1, 1, *input_mask.shape[-2:])
    mask = functional.interpolate(mask, size=tuple(output_shape[2:]), mode=_MODES[axes])
    if mask.shape[1] < output_shape[1]:
        mask = mask.repeat([1, output_shape[1]] + [1] * axes)[:, : output_shape[1]]
    return fit_batch(mask, output_shape[0])


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
