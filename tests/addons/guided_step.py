"""One guided evaluation of a small model, as the recordings of model patches are made."""

from __future__ import annotations

import torch
from torch import Tensor

import comfy.model_management
import comfy.samplers
from comfy.model_patcher import ModelPatcher
from comfy.sampling.cond_prepare import convert_cond, encode_model_conds


def guided(patcher: ModelPatcher, x: Tensor, sigma: Tensor, positive: list, negative: list, cfg: float) -> Tensor:
    """The guided x0 prediction. positive, negative: CONDITIONING. Both random generators are seeded."""
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    sides = []
    for name, conditioning in (("positive", positive), ("negative", negative)):
        entries = convert_cond(conditioning)
        sides.append(encode_model_conds(model.extra_conds, entries, x, x.device, name))
    torch.manual_seed(123)
    patcher.pre_run()
    try:
        return comfy.samplers.sampling_function(model, x, sigma, sides[1], sides[0], cfg, patcher.model_options)
    finally:
        patcher.cleanup()
        patcher.detach()
