"""Consistency sampling of a latent that grows on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comfy.resize import common_upscale
from comfy.sampling.solvers.common import Callback, ModelFunction, Run, model_sampling_of, noised


class MaskedUpscaleError(ValueError):
    """A noise mask cannot follow a latent that changes its size."""


@torch.no_grad()
def sample_lcm_upscale(
    model: ModelFunction,
    x: Tensor,
    sigmas: Tensor,
    extra_args: dict[str, Any] | None = None,
    callback: Callback | None = None,
    disable: bool | None = None,
    total_upscale: float = 2.0,
    upscale_method: str = "bislerp",
    upscale_steps: int | None = None,
) -> Tensor:
    """Denoise fully, enlarge, noise again (consistency sampling, arXiv:2310.04378).

    `total_upscale`: sides of the result in sides of `x` [batch, channels, height, width], reached in equal parts after
    `upscale_steps` steps (None: half of them). Noise continues the global generator, after the initial noise.
    Raises MaskedUpscaleError for a run with a noise mask.
    """
    run = Run(model, x, sigmas, extra_args, callback)
    if run.extra_args.get("denoise_mask") is not None:
        raise MaskedUpscaleError("SamplerLCMUpscale cannot sample latents with a noise mask: their size changes")
    growing = max(len(run.sigmas) // 2, 1) if upscale_steps is None else min(upscale_steps, len(run.sigmas))
    model_sampling = model_sampling_of(model)
    height, width = x.shape[-2:]
    for i, s, n in run.steps():
        denoised = run.denoise(x, s)
        run.report(i, x, denoised)
        x = denoised
        if i < growing:
            scale = 1 + (total_upscale - 1) * (i + 1) / growing
            x = common_upscale(x, round(width * scale), round(height * scale), upscale_method, "disabled")
        if n > 0:
            x = noised(model_sampling, n, torch.randn_like(x), x)
    return x
