"""Nodes that change how a model's two predictions are combined at each step.

All work on x0 predictions: `cond`, `uncond` and `denoised` are guesses of the clean latent, `x` is the noisy one.
"""

from __future__ import annotations

from typing import Any

import torch

from comfy.sampling.solvers.common import float32, host_sigma
from comfy_api.latest import io


def _sums(product: torch.Tensor) -> torch.Tensor:
    """Sum over all axes but the batch, kept for broadcasting."""
    return product.sum(dim=tuple(range(1, product.ndim)), keepdim=True)


def _with_post_cfg(model: Any, function: Any) -> Any:
    """A clone of the model whose guided prediction goes through `function(args)`."""
    patched = model.clone()
    patched.set_model_sampler_post_cfg_function(function)
    return patched


def _length_ratio(wanted: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Length of the channel vectors of one tensor in units of the other's: [B,1,H,W]."""
    length = torch.linalg.vector_norm(actual, dim=1, keepdim=True)
    return torch.linalg.vector_norm(wanted, dim=1, keepdim=True) / (length + 1e-8)


class CFGNorm(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CFGNorm",
            category="advanced/guidance",
            description=("Keeps guidance from making predictions longer than the positive one (as Qwen-Image does)."),
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "strength",
                    tooltip="Factor for the result; before guidance, how far to go.",
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                ),
                io.Boolean.Input(
                    "pre_cfg",
                    tooltip=("Whether to limit the predicted noise, which other nodes' guidance then builds on."),
                    optional=True,
                    default=False,
                ),
            ],
            outputs=[io.Model.Output(display_name="patched_model")],
        )

    @classmethod
    def execute(cls, model: Any, strength: float, pre_cfg: bool = False) -> io.NodeOutput:
        def after_guidance(args: dict) -> torch.Tensor:
            ratio = _length_ratio(args["cond_denoised"], args["denoised"])
            return args["denoised"] * ratio.clamp(0.0, 1.0) * strength

        def before_guidance(args: dict) -> list:
            outputs = args["conds_out"]
            if len(outputs) == 1:
                return outputs
            x, scale = args["input"], args["cond_scale"]
            toward = x - outputs[0]
            guided = x - (outputs[1] + scale * (outputs[0] - outputs[1]))
            ratio = 1.0 + strength * (_length_ratio(toward, guided) - 1.0)
            result = x - guided * ratio
            # Guidance between two equal predictions gives them back.
            return [result, result, *outputs[2:]]

        if not pre_cfg:
            return io.NodeOutput(_with_post_cfg(model, after_guidance))
        patched = model.clone()
        patched.set_model_sampler_pre_cfg_function(before_guidance)
        return io.NodeOutput(patched)


class CFGZeroStar(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CFGZeroStar",
            category="advanced/guidance",
            description=(
                "Scales the negative prediction so that guidance starts nearer to the truth "
                "(CFG-Zero*, Fan et al., 2025)."
            ),
            inputs=[io.Model.Input("model", tooltip="Model to change.")],
            outputs=[io.Model.Output(display_name="patched_model")],
        )

    @classmethod
    def execute(cls, model: Any) -> io.NodeOutput:
        def rescaled(args: dict) -> torch.Tensor:
            x, cond, uncond = args["input"], args["cond_denoised"], args["uncond_denoised"]
            toward, away = x - cond, x - uncond
            # Length of the projection of the positive velocity onto the negative one.
            share = _sums(toward * away) / (_sums(away**2) + 1e-8)
            return args["denoised"] + uncond * (share - 1.0) * (1.0 - args["cond_scale"])

        return io.NodeOutput(_with_post_cfg(model, rescaled))


class VideoLinearCFGGuidance:
    DESCRIPTION = "Raises the guidance frame by frame, for video models that are weakest at the first frame."
    DISPLAY_NAME = "Video Linear CFG Guidance"
    CATEGORY = "model/sampling/guiders"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "min_cfg": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.5,
                        "round": 0.01,
                        "advanced": True,
                        "tooltip": "Guidance of the first frame.",
                    },
                ),
            }
        }

    def patch(self, model: Any, min_cfg: float) -> tuple[Any]:
        def guide(args: dict) -> torch.Tensor:
            cond, uncond = args["cond"], args["uncond"]
            scale = torch.linspace(min_cfg, args["cond_scale"], cond.shape[0], device=cond.device)
            return uncond + scale.reshape(-1, *[1] * (cond.ndim - 1)) * (cond - uncond)

        patched = model.clone()
        patched.set_model_sampler_cfg_function(guide)
        return (patched,)


class VideoTriangleCFGGuidance:
    DESCRIPTION = "Raises the guidance towards the middle frame and lowers it again, for turning views."
    DISPLAY_NAME = "Video Triangle CFG Guidance"
    CATEGORY = "model/sampling/guiders"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to change."}),
                "min_cfg": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.5,
                        "round": 0.01,
                        "advanced": True,
                        "tooltip": "Guidance of the first and the last frame.",
                    },
                ),
            }
        }

    def patch(self, model: Any, min_cfg: float) -> tuple[Any]:
        def guide(args: dict) -> torch.Tensor:
            cond, uncond = args["cond"], args["uncond"]
            place = torch.linspace(0, 1, cond.shape[0], device=cond.device)
            triangle = 2 * (place - torch.floor(place + 0.5)).abs()
            scale = triangle * (args["cond_scale"] - min_cfg) + min_cfg
            return uncond + scale.reshape(-1, *[1] * (cond.ndim - 1)) * (cond - uncond)

        patched = model.clone()
        patched.set_model_sampler_cfg_function(guide)
        return (patched,)


class Epsilon_Scaling(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Epsilon Scaling",
            category="model/patch/unet",
            description=(
                "Makes the predicted noise a little smaller, against drift over many steps (Ning et al., 2024)."
            ),
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "scaling_factor",
                    tooltip="Divisor of the predicted noise.",
                    advanced=True,
                    display_mode=io.NumberDisplay.number,
                    default=1.005,
                    min=0.5,
                    max=1.5,
                    step=0.001,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, scaling_factor: float) -> io.NodeOutput:
        # Zero would divide by nothing.
        factor = scaling_factor or 1e-9

        def scale(args: dict) -> torch.Tensor:
            x = args["input"]
            return x - (x - args["denoised"]) / factor

        return io.NodeOutput(_with_post_cfg(model, scale))


class Mahiro(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Mahiro",
            display_name="Positive-Biased Guidance",
            category="experimental",
            description="Leans guidance towards the positive prediction where both sides disagree.",
            is_experimental=True,
            inputs=[io.Model.Input("model", tooltip="Model to change.")],
            outputs=[io.Model.Output(display_name="patched_model")],
        )

    @classmethod
    def execute(cls, model: Any) -> io.NodeOutput:
        def lean(args: dict) -> torch.Tensor:
            leap = args["cond_denoised"] * args["cond_scale"]
            against = args["uncond_denoised"] * args["cond_scale"]
            guided = args["denoised"]
            roots = (torch.sqrt(v.abs()) * v.sign() for v in (against, (leap + guided) / 2))
            similarity = 2 * (torch.nn.functional.cosine_similarity(*roots).mean() + 1)
            return (similarity * guided + (4 - similarity) * leap) / 4

        return io.NodeOutput(_with_post_cfg(model, lean))


class CFGOverride(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CFGOverride",
            display_name="CFG Override",
            category="model/sampling/guiders",
            description="Sets another guidance strength for a part of sampling.",
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "cfg", tooltip="Guidance strength there.", default=1.0, min=0.0, max=100.0, step=0.1, round=0.01
                ),
                io.Float.Input(
                    "start_percent",
                    tooltip="Where it begins; 0 is the first step.",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                ),
                io.Float.Input(
                    "end_percent",
                    tooltip="Where it ends; 1 is the last step.",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, cfg: float, start_percent: float, end_percent: float) -> io.NodeOutput:
        sampling = model.get_model_object("model_sampling")
        begin, end = (float32(sampling.percent_to_sigma(p)) for p in (start_percent, end_percent))

        def guide(args: dict) -> torch.Tensor:
            scale = cfg if end <= host_sigma(args["sigma"]) <= begin else args["cond_scale"]
            return args["uncond"] + scale * (args["cond"] - args["uncond"])

        patched = model.clone()
        patched.set_model_sampler_cfg_function(guide)
        return io.NodeOutput(patched)


NODES = {
    "comfy_extras.nodes_cfg": [CFGNorm, CFGZeroStar],
    "comfy_extras.nodes_video_model": [VideoLinearCFGGuidance, VideoTriangleCFGGuidance],
    "comfy_extras.nodes_eps": [Epsilon_Scaling],
    "comfy_extras.nodes_mahiro": [Mahiro],
    "comfy_extras.nodes_custom_sampler": [CFGOverride],
}
