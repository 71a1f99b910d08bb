"""One guided evaluation, or a short run, of the toy model on the conditionings of conditioning.*."""

from __future__ import annotations

from typing import Any

import torch
import toy
from torch import Tensor

import comfy.samplers

RECORDED, CASES = toy.tensors("conditioning"), toy.meta("conditioning")


def entry(name: str, **options: Any) -> list[Any]:
    return [RECORDED[f"cond/{name}"], {"pooled_output": RECORDED.get(f"cond/{name}_pooled"), **options}]


def area(name: str, *where: Any, strength: float = 1.0) -> list[Any]:
    return entry(name, area=where, strength=strength, set_area_to_bounds=False)


def masked(name: str, mask: Tensor, mask_strength: float = 1.0, bounds: bool = False, **options: Any) -> list[Any]:
    return entry(name, mask=mask, mask_strength=mask_strength, set_area_to_bounds=bounds, **options)


def cfg_guider(kind: str, cfg: float, positive: list, negative: list) -> comfy.samplers.CFGGuider:
    guider = comfy.samplers.CFGGuider(toy.patcher(kind).clone())
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider


def guided_step(guider: comfy.samplers.CFGGuider, x: Tensor, sigma: float) -> tuple[Tensor, dict[str, Tensor], list]:
    """(guided, {"cond", "uncond"}, calls of the model) of one evaluation."""
    model = guider.model_patcher.model
    model.calls.clear()
    guider.inner_model = model
    guider.conds = comfy.samplers.process_conds(model, x, dict(guider.original_conds), x.device)
    parts: dict[str, Tensor] = {}

    def keep(args: dict) -> Tensor:
        parts.update(cond=args["cond_denoised"], uncond=args["uncond_denoised"])
        return args["denoised"]

    options = dict(guider.model_options)
    options["sampler_post_cfg_function"] = [keep, *options.get("sampler_post_cfg_function", [])]
    guided = guider(x, torch.full((x.shape[0],), sigma), model_options=options, seed=0)
    return guided, parts, list(model.calls)


NEG_ENTRY = entry("NEG")
