"""Guiders of two parts: a model of its own for the negative; a strength of its own for the sound of a video."""

from __future__ import annotations

import math
from typing import Any

import torch

import comfy.samplers
from comfy import patcher_extension, sampler_helpers
from comfy_api.latest import io

from .conditioning import ConditioningZeroOut


class SharedModelError(ValueError):
    """Two models that differ in their patches alone cannot be in force at once."""


class TwoModelGuider(comfy.samplers.CFGGuider):
    """Classifier-free guidance whose negative is predicted by another model (one trained without text, say).

    Both models are loaded for the whole run; each has its own options, patches and hooks. Sampling, noise levels and
    latent format are the first one's.
    """

    def __init__(self, model_patcher: Any, negative_patcher: Any) -> None:
        super().__init__(model_patcher)
        if negative_patcher.is_clone(model_patcher) and not negative_patcher.clone_has_same_weights(model_patcher):
            raise SharedModelError(
                "model and model_negative are one loaded file with different LoRAs; load the file twice for that"
            )
        self.negative_patcher = negative_patcher
        self.negative_options: dict[str, Any] = {}

    def outer_sample(self, noise: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the base class; the other model is loaded and let go of with the first."""
        options = patcher_extension.copy_nested_dicts(self.negative_patcher.model_options)
        sampler_helpers.prepare_model_patcher(self.negative_patcher, {"negative": self.conds["negative"]}, options)
        self.negative_options = options
        for entry in self.conds["negative"]:
            entry["additional_models"] = [
                *sampler_helpers.get_models_from_cond([entry], "additional_models"),
                self.negative_patcher,
            ]
        return super().outer_sample(noise, *args, **kwargs)

    def prepare_conds(self, *args: Any) -> dict[str, list[dict[str, Any]]]:
        """Each side with the inputs that its own model asks for."""
        unprepared = {name: list(entries) for name, entries in self.conds.items()}
        conds = super().prepare_conds(*args)
        noise, *rest = args
        others = comfy.samplers.process_conds(self.negative_patcher.model, noise, unprepared, *rest)
        self.negative_patcher.pre_run()
        return {**conds, "negative": others["negative"]}

    def predict_noise(self, x: torch.Tensor, timestep: torch.Tensor, model_options: dict | None = None, seed=None):
        options = {**(model_options or {}), "sampler_calc_cond_batch_function": self._evaluate}
        return super().predict_noise(x, timestep, options, seed)

    def _evaluate(self, args: dict[str, Any]) -> list[torch.Tensor]:
        positive, negative = args["conds"]
        x, sigma, options = args["input"], args["sigma"], args["model_options"]
        transformer = {
            **self.negative_options.get("transformer_options", {}),
            "sample_sigmas": options["transformer_options"].get("sample_sigmas"),
        }
        others = {**self.negative_options, "transformer_options": transformer}
        (toward,) = comfy.samplers.calc_cond_batch(args["model"], [positive], x, sigma, options)
        (away,) = comfy.samplers.calc_cond_batch(self.negative_patcher.model, [negative], x, sigma, others)
        return [toward, away]


class TwoStrengthGuider(comfy.samplers.CFGGuider):
    """Classifier-free guidance with one strength for the first part of a nested latent and another for the rest."""

    def set_cfg(self, cfg: float, rest: float) -> None:
        self.cfg, self.rest = cfg, rest

    def prepare_conds(self, noise: torch.Tensor, *args: Any) -> dict[str, list[dict[str, Any]]]:
        """Also fixes where in the packed latent which strength holds."""
        latent_shapes = args[-1]
        self.scale = torch.full(noise.shape[-1:], self.cfg, device=noise.device)
        if latent_shapes is not None:
            self.scale[math.prod(latent_shapes[0][1:]) :] = self.rest
        return super().prepare_conds(noise, *args)

    def predict_noise(self, x: torch.Tensor, timestep: torch.Tensor, model_options: dict | None = None, seed=None):
        options = dict(model_options or {})
        if not math.isclose(self.cfg, self.rest):
            options["disable_cfg1_optimization"] = True
            options.setdefault("sampler_cfg_function", self._guide)
        return super().predict_noise(x, timestep, options, seed)

    def _guide(self, args: dict[str, Any]) -> torch.Tensor:
        return args["uncond"] + (args["cond"] - args["uncond"]) * self.scale


class DualModelGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="DualModelGuider",
            display_name="Dual Model CFG Guider",
            category="model/sampling/guiders",
            description="Guides a model towards a conditioning, and away from what another model predicts.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Float.Input("cfg", tooltip="How strongly.", default=4.0, min=0.0, max=100.0, step=0.1, round=0.01),
                io.Model.Input(
                    "model_negative", tooltip="Model of the negative; the same one if there is none.", optional=True
                ),
                io.Conditioning.Input(
                    "negative", tooltip="Conditioning to avoid; an empty one if there is none.", optional=True
                ),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(
        cls, model: Any, positive: list, cfg: float, model_negative: Any = None, negative: list | None = None
    ) -> io.NodeOutput:
        guider = comfy.samplers.CFGGuider(model) if model_negative is None else TwoModelGuider(model, model_negative)
        guider.set_conds(positive, ConditioningZeroOut().zero_out(positive)[0] if negative is None else negative)
        guider.set_cfg(cfg)
        return io.NodeOutput(guider)


class LTXVDualCFGGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        strength = {"min": 0.0, "max": 100.0, "step": 0.1, "round": 0.01}
        return io.Schema(
            node_id="LTXVDualCFGGuider",
            display_name="LTXV Dual CFG Guider",
            category="model/sampling/guiders",
            description="Guides the picture and the sound of a video with strengths of their own.",
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Float.Input("video_cfg", tooltip="How strongly, for the picture.", default=3.0, **strength),
                io.Float.Input("audio_cfg", tooltip="How strongly, for the sound.", default=7.0, **strength),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(cls, model: Any, positive: list, negative: list, video_cfg: float, audio_cfg: float) -> io.NodeOutput:
        guider = TwoStrengthGuider(model)
        guider.set_conds(positive, negative)
        guider.set_cfg(video_cfg, audio_cfg)
        return io.NodeOutput(guider)


NODES = {
    "comfy_extras.nodes_custom_sampler": [DualModelGuider],
    "comfy_extras.nodes_lt": [LTXVDualCFGGuider],
}
