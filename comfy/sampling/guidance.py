"""Classifier-free guidance on denoised predictions, and the functions that packs hang around it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from comfy.sampling.cond_batch import calc_cond_batch


def cfg_function(
    model: Any,
    cond_pred: Tensor,
    uncond_pred: Tensor,
    cond_scale: float,
    x: Tensor,
    timestep: Tensor,
    model_options: dict[str, Any] | None = None,
    cond: Any = None,
    uncond: Any = None,
) -> Tensor:
    """Classifier-free guidance (Ho & Salimans 2022, arXiv:2207.12598) on denoised predictions.

    Model options: `sampler_cfg_function` replaces the formula (and works on x - denoised);
    `sampler_post_cfg_function`, a list, sees and replaces the result in turn.
    """
    options = model_options or {}
    if "sampler_cfg_function" in options:
        guided = x - options["sampler_cfg_function"](
            {
                "cond": x - cond_pred,
                "uncond": x - uncond_pred,
                "cond_scale": cond_scale,
                "timestep": timestep,
                "input": x,
                "sigma": timestep,
                "cond_denoised": cond_pred,
                "uncond_denoised": uncond_pred,
                "model": model,
                "model_options": options,
                "input_cond": cond,
                "input_uncond": uncond,
            }
        )
    else:
        guided = uncond_pred + (cond_pred - uncond_pred) * cond_scale
    for function in options.get("sampler_post_cfg_function", []):
        guided = function(
            {
                "denoised": guided,
                "cond": cond,
                "uncond": uncond,
                "cond_scale": cond_scale,
                "model": model,
                "uncond_denoised": uncond_pred,
                "cond_denoised": cond_pred,
                "sigma": timestep,
                "model_options": options,
                "input": x,
            }
        )
    return guided


def sampling_function(
    model: Any,
    x: Tensor,
    timestep: Tensor,
    uncond: Any,
    cond: Any,
    cond_scale: float,
    model_options: dict[str, Any] | None = None,
    seed: int | None = None,
) -> Tensor:
    """The guided denoised prediction for `x` at sigma `timestep` [batch].

    At scale 1 the negative is left out, unless `disable_cfg1_optimization` is set in the model options.
    """
    options = model_options or {}
    skip_negative = math.isclose(cond_scale, 1.0) and not options.get("disable_cfg1_optimization", False)
    conds = [cond, None if skip_negative else uncond]
    if "sampler_calc_cond_batch_function" in options:
        args = {"conds": conds, "input": x, "sigma": timestep, "model": model, "model_options": options}
        out = options["sampler_calc_cond_batch_function"](args)
    else:
        out = calc_cond_batch(model, conds, x, timestep, options)
    for function in options.get("sampler_pre_cfg_function", []):
        out = function(
            {
                "conds": conds,
                "conds_out": out,
                "cond_scale": cond_scale,
                "timestep": timestep,
                "input": x,
                "sigma": timestep,
                "model": model,
                "model_options": options,
            }
        )
    return cfg_function(
        model, out[0], out[1], cond_scale, x, timestep, model_options=options, cond=cond, uncond=conds[1]
    )
