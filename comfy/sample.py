"""From a latent and a prompt to a denoised latent: the functions that nodes call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import comfy.samplers
from comfy.sampler_helpers import cleanup_additional_models
from comfy.sampling.noise import prepare_noise, prepare_noise_inner

__all__ = [
    "cleanup_additional_models",
    "fix_empty_latent_channels",
    "np",
    "prepare_noise",
    "prepare_noise_inner",
    "sample",
    "sample_custom",
]


def fix_empty_latent_channels(
    model: Any,
    latent_image: Any,
    downscale_ratio_spacial: float | None = None,
    downscale_ratio_temporal: float | None = None,
) -> Any:
    """An all-zero latent in the shape that `model` works on; any other latent as it is.

    `downscale_ratio_spacial`, `_temporal`: pixels and frames per cell the latent was made for; its size is
    converted to the model's ratio when they are known. An image latent for a video model gets a time axis.
    """
    if getattr(latent_image, "is_nested", False):
        return latent_image
    latent_format = model.get_model_object("latent_format")
    shape = list(latent_image.shape)
    if torch.count_nonzero(latent_image) == 0:
        shape[1] = latent_format.latent_channels
        if downscale_ratio_spacial is not None:
            ratio = downscale_ratio_spacial / latent_format.spacial_downscale_ratio
            first_spatial = 2 if latent_image.ndim <= 4 else 3
            for axis in range(first_spatial, latent_image.ndim):
                shape[axis] = max(1, round(shape[axis] * ratio))
        if downscale_ratio_temporal is not None and latent_image.ndim == 5:
            ratio = downscale_ratio_temporal / latent_format.temporal_downscale_ratio
            shape[2] = max(1, round(shape[2] * ratio))
        if shape != list(latent_image.shape):
            latent_image = latent_image.new_zeros(shape)
    if latent_format.latent_dimensions == 3 and latent_image.ndim == 4:
        latent_image = latent_image.unsqueeze(2)
    return latent_image


def _to_intermediate_device(samples: Any) -> Any:
    import comfy.model_management

    return comfy.model_management.to_intermediate(samples)


def sample(
    model: Any,
    noise: Tensor,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: list[Any],
    negative: list[Any],
    latent_image: Tensor,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
    noise_mask: Tensor | None = None,
    sigmas: Tensor | None = None,
    callback: Callable[..., Any] | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> Tensor:
    """Denoise `latent_image` with a named sampler and scheduler; float32 on the intermediate device.

    `disable_noise` tells that `noise` is zeros; `callback(step, x0, x, total_steps)` after each step.
    """
    sampler = comfy.samplers.KSampler(
        model,
        steps=steps,
        device=model.load_device,
        sampler=sampler_name,
        scheduler=scheduler,
        denoise=denoise,
        model_options=model.model_options,
    )
    samples = sampler.sample(
        noise,
        positive,
        negative,
        cfg=cfg,
        latent_image=latent_image,
        start_step=start_step,
        last_step=last_step,
        force_full_denoise=force_full_denoise,
        denoise_mask=noise_mask,
        sigmas=sigmas,
        callback=callback,
        disable_pbar=disable_pbar,
        seed=seed,
    )
    return _to_intermediate_device(samples)


def sample_custom(
    model: Any,
    noise: Tensor,
    cfg: float,
    sampler: Any,
    sigmas: Sequence[float] | Tensor,
    positive: list[Any],
    negative: list[Any],
    latent_image: Tensor,
    noise_mask: Tensor | None = None,
    callback: Callable[..., Any] | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> Tensor:
    """Denoise `latent_image` with a SAMPLER along SIGMAS."""
    samples = comfy.samplers.sample(
        model,
        noise,
        positive,
        negative,
        cfg,
        model.load_device,
        sampler,
        sigmas,
        model_options=model.model_options,
        latent_image=latent_image,
        denoise_mask=noise_mask,
        callback=callback,
        disable_pbar=disable_pbar,
        seed=seed,
    )
    return _to_intermediate_device(samples)
