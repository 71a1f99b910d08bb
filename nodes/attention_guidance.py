"""Nodes that guide sampling by a second, worsened prediction: of the positive side with a part of the network left out,
or of the negative side with its salient parts blurred."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

import comfy.samplers
from comfy.model_options import create_model_options_clone, set_model_options_patch_replace
from comfy.sampling.solvers.common import host_sigma
from comfy.unet_patches.self_attention_guidance import SelfAttentionGuidance as Guidance
from comfy_api.latest import io


class PerturbedAttentionGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PerturbedAttentionGuidance",
            category="model/patch/unet",
            description="Guides away from what the model predicts without self-attention in its middle.",
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "scale", default=3.0, min=0.0, max=100.0, step=0.01, round=0.01, tooltip="How far to go; 0 is off."
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, scale: float) -> io.NodeOutput:
        def without_attention(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
            return v

        def worsened(options: dict[str, Any]) -> dict[str, Any]:
            return set_model_options_patch_replace(options, without_attention, "attn1", "middle", 0)

        def after_guidance(args: dict[str, Any]) -> Tensor:
            if scale == 0:
                return args["denoised"]
            return args["denoised"] + (args["cond_denoised"] - _predicted(args, worsened)) * scale

        patched = model.clone()
        patched.set_model_sampler_post_cfg_function(after_guidance)
        return io.NodeOutput(patched)


def _predicted(args: dict[str, Any], worsened: Callable[[dict[str, Any]], dict[str, Any]]) -> Tensor:
    """The positive prediction of the worsened model."""
    options = worsened(args["model_options"])
    (out,) = comfy.samplers.calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], options)
    return out


class SelfAttentionGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SelfAttentionGuidance",
            display_name="Self-Attention Guidance",
            category="experimental",
            description="Guides away from a prediction whose salient parts were blurred.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input("scale", default=0.5, min=-2.0, max=5.0, step=0.01, tooltip="How far to go."),
                io.Float.Input(
                    "blur_sigma", default=2.0, min=0.0, max=10.0, step=0.1, advanced=True, tooltip="Width of the blur."
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, scale: float, blur_sigma: float) -> io.NodeOutput:
        guidance = Guidance(scale, blur_sigma)
        patched = model.clone()
        # The negative side is needed also where guidance would leave it out.
        patched.set_model_sampler_post_cfg_function(guidance.guide, disable_cfg1_optimization=True)
        patched.set_model_attn1_replace(guidance.attend, "middle", 0, 0)
        return io.NodeOutput(patched)


# --- leaving layers out


def _numbers(text: str) -> list[int]:
    """All whole numbers in a text such as "7, 8, 9"."""
    return [int(n) for n in re.findall(r"\d+", text)]


def _without_layers(double: Iterable[int], single: Iterable[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Turns model options into those with transformer blocks left out."""

    def passed_through(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        return args

    def worsened(options: dict[str, Any]) -> dict[str, Any]:
        options = create_model_options_clone(options)
        for kind, layers in (("double_block", double), ("single_block", single)):
            for layer in layers:
                options = set_model_options_patch_replace(options, passed_through, "dit", kind, layer)
        return options

    return worsened


def _sigma_range(model: Any, start_percent: float, end_percent: float) -> tuple[float, float]:
    sampling = model.get_model_object("model_sampling")
    return sampling.percent_to_sigma(start_percent), sampling.percent_to_sigma(end_percent)


def _skip_layers(
    model: Any,
    double: list[int],
    single: list[int],
    scale: float,
    start_percent: float,
    end_percent: float,
    rescaling_scale: float = 0.0,
) -> Any:
    """A clone of the model that is guided away from its positive prediction without some layers."""
    if not double and not single:
        return model
    worsened = _without_layers(double, single)
    start, end = _sigma_range(model, start_percent, end_percent)

    def after_guidance(args: dict[str, Any]) -> Tensor:
        guided, positive = args["denoised"], args["cond_denoised"]
        if scale <= 0 or not end <= host_sigma(args["sigma"]) <= start:
            return guided
        guided = guided + (positive - _predicted(args, worsened)) * scale
        if rescaling_scale != 0:
            factor = positive.std() / guided.std()
            guided = guided * (rescaling_scale * factor + (1 - rescaling_scale))
        return guided

    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(after_guidance)
    return patched


def _layers_input(name: str, kind: str) -> Any:
    return io.String.Input(
        name, default="7, 8, 9", multiline=False, advanced=True, tooltip=f"Numbers of the {kind} to leave out."
    )


def _range_inputs(start: float, end: float) -> list:
    percent = {"min": 0.0, "max": 1.0, "step": 0.001, "advanced": True}
    return [
        io.Float.Input("start_percent", default=start, tooltip="Share of sampling at which it sets in.", **percent),
        io.Float.Input("end_percent", default=end, tooltip="Share of sampling at which it ends.", **percent),
    ]


def _scale_input() -> Any:
    return io.Float.Input("scale", default=3.0, min=0.0, max=10.0, step=0.1, tooltip="How far to go; 0 is off.")


class SkipLayerGuidanceDiT(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SkipLayerGuidanceDiT",
            category="advanced/guidance",
            description="Guides a transformer away from what it predicts with some layers left out.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                _layers_input("double_layers", "two-stream blocks"),
                _layers_input("single_layers", "one-stream blocks"),
                _scale_input(),
                *_range_inputs(0.01, 0.15),
                io.Float.Input(
                    "rescaling_scale",
                    default=0.0,
                    min=0.0,
                    max=10.0,
                    step=0.01,
                    tooltip="How far the contrast is brought back to that of the positive prediction.",
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        scale: float,
        start_percent: float,
        end_percent: float,
        double_layers: str = "",
        single_layers: str = "",
        rescaling_scale: float = 0.0,
    ) -> io.NodeOutput:
        double, single = _numbers(double_layers), _numbers(single_layers)
        return io.NodeOutput(_skip_layers(model, double, single, scale, start_percent, end_percent, rescaling_scale))


class SkipLayerGuidanceSD3(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SkipLayerGuidanceSD3",
            category="advanced/guidance",
            description="Guides Stable Diffusion 3 away from what it predicts with some layers left out.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                _layers_input("layers", "blocks"),
                _scale_input(),
                *_range_inputs(0.01, 0.15),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, layers: str, scale: float, start_percent: float, end_percent: float) -> io.NodeOutput:
        return io.NodeOutput(_skip_layers(model, _numbers(layers), [], scale, start_percent, end_percent))


class SkipLayerGuidanceDiTSimple(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SkipLayerGuidanceDiTSimple",
            category="advanced/guidance",
            description="Leaves layers of a transformer out of the negative prediction only, at no cost.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                _layers_input("double_layers", "two-stream blocks"),
                _layers_input("single_layers", "one-stream blocks"),
                *_range_inputs(0.0, 1.0),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        start_percent: float,
        end_percent: float,
        double_layers: str = "",
        single_layers: str = "",
    ) -> io.NodeOutput:
        double, single = _numbers(double_layers), _numbers(single_layers)
        if not double and not single:
            return io.NodeOutput(model)
        worsened = _without_layers(double, single)
        start, end = _sigma_range(model, start_percent, end_percent)

        def predictions(args: dict[str, Any]) -> list[Tensor]:
            model, conds, options = args["model"], args["conds"], args["model_options"]
            x, sigma = args["input"], args["sigma"]
            if conds[1] is None or not end <= host_sigma(sigma) <= start:
                return comfy.samplers.calc_cond_batch(model, conds, x, sigma, options)
            (positive,) = comfy.samplers.calc_cond_batch(model, [conds[0]], x, sigma, options)
            (negative,) = comfy.samplers.calc_cond_batch(model, [conds[1]], x, sigma, worsened(options))
            return [positive, negative]

        patched = model.clone()
        patched.set_model_sampler_calc_cond_batch_function(predictions)
        return io.NodeOutput(patched)


NODES = {
    "comfy_extras.nodes_pag": [PerturbedAttentionGuidance],
    "comfy_extras.nodes_sag": [SelfAttentionGuidance],
    "comfy_extras.nodes_slg": [SkipLayerGuidanceDiT, SkipLayerGuidanceDiTSimple],
    "comfy_extras.nodes_sd3": [SkipLayerGuidanceSD3],
}
