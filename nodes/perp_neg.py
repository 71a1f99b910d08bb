"""Nodes for Perp-Neg: guidance that leaves out what the negative has in common with the positive (arXiv:2304.04968)."""

from __future__ import annotations

from typing import Any

import torch

import comfy.samplers
from comfy.sampling import guidance_methods
from comfy_api.latest import io


class PerpendicularGuider(comfy.samplers.CFGGuider):
    """Three predictions per step: positive, negative and empty."""

    def set_conds(self, positive: list, negative: list, empty: list) -> None:
        empty = [[tensor, dict(options)] for tensor, options in empty]
        self.inner_set_conds({"positive": positive, "empty_negative_prompt": empty, "negative": negative})

    def set_cfg(self, cfg: float, neg_scale: float) -> None:
        self.cfg, self.neg_scale = cfg, neg_scale

    def predict_noise(self, x: torch.Tensor, timestep: torch.Tensor, model_options: dict | None = None, seed=None):
        options = model_options or {}
        positive, negative = self.conds.get("positive"), self.conds.get("negative")
        empty = self.conds.get("empty_negative_prompt")
        if self.neg_scale == 0.0 and not options.get("disable_cfg1_optimization", False):
            # Its prediction would be multiplied by zero.
            negative = None
        predictions = comfy.samplers.calc_cond_batch(
            self.inner_model, [positive, negative, empty], x, timestep, options
        )
        if negative is None:
            predictions[1] = torch.zeros_like(predictions[0])
        guided = guidance_methods.perp_neg(*predictions, self.neg_scale, self.cfg)
        for function in options.get("sampler_post_cfg_function", []):
            guided = function({
                "denoised": guided, "cond": positive, "uncond": negative, "cond_scale": self.cfg,
                "model": self.inner_model, "uncond_denoised": predictions[1], "cond_denoised": predictions[0],
                "sigma": timestep, "model_options": options, "input": x,
                "empty_cond": empty, "empty_cond_denoised": predictions[2],
            })  # fmt: skip
        return guided


class PerpNegGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PerpNegGuider",
            display_name="Perp-Neg Guider",
            category="experimental",
            description=(
                "Guides away from the negative only where it does not contradict the positive "
                "(Perp-Neg, Armandpour et al., 2023)."
            ),
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Conditioning.Input("empty_conditioning", tooltip="Conditioning of an empty text."),
                io.Float.Input("cfg", tooltip="How strongly.", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01),
                io.Float.Input(
                    "neg_scale",
                    tooltip="Weight of the negative.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        positive: list,
        negative: list,
        empty_conditioning: list,
        cfg: float,
        neg_scale: float,
    ) -> io.NodeOutput:
        guider = PerpendicularGuider(model)
        guider.set_conds(positive, negative, empty_conditioning)
        guider.set_cfg(cfg, neg_scale)
        return io.NodeOutput(guider)


class PerpNeg(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PerpNeg",
            display_name="Perp-Neg (DEPRECATED by Perp-Neg Guider)",
            category="experimental",
            description="Older form of Perp-Neg Guider: it evaluates the empty conditioning in a call of its own.",
            is_deprecated=True,
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Conditioning.Input("empty_conditioning", tooltip="Conditioning of an empty text."),
                io.Float.Input(
                    "neg_scale",
                    tooltip="Weight of the negative.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, empty_conditioning: list, neg_scale: float) -> io.NodeOutput:
        patched = model.clone()
        patched.set_model_sampler_post_cfg_function(guidance_methods.PerpNeg(empty_conditioning, neg_scale))
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_perpneg": [PerpNegGuider, PerpNeg]}
