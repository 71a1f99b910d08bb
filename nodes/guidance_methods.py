"""Nodes that put another way to guide (comfy.sampling.guidance_methods) on a model."""

from __future__ import annotations

from typing import Any

from comfy.sampling import guidance_methods as methods
from comfy_api.latest import io


def _model() -> io.Model.Input:
    return io.Model.Input("model", tooltip="Model to change.")


class TCFG(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TCFG",
            display_name="Tangential Damping CFG",
            category="advanced/guidance",
            description=(
                "Leaves out of the negative what lies off the direction that both share (TCFG, Kwon et al. 2025)."
            ),
            inputs=[_model()],
            outputs=[io.Model.Output(display_name="patched_model")],
        )

    @classmethod
    def execute(cls, model: Any) -> io.NodeOutput:
        patched = model.clone()
        patched.set_model_sampler_pre_cfg_function(methods.TangentialDampingCFG())
        return io.NodeOutput(patched)


class FreSca(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        factor = {"advanced": True, "min": 0, "max": 10, "step": 0.01}
        return io.Schema(
            node_id="FreSca",
            display_name="FreSca",
            category="experimental",
            description="Scales the coarse and the fine part of the guidance apart (FreSca, Huang et al., 2025).",
            is_experimental=True,
            inputs=[
                _model(),
                io.Float.Input("scale_low", tooltip="Factor of coarse structure.", default=1.0, **factor),
                io.Float.Input("scale_high", tooltip="Factor of fine detail.", default=1.25, **factor),
                io.Int.Input(
                    "freq_cutoff",
                    tooltip="Number of frequencies, from the lowest on, that count as coarse.",
                    advanced=True,
                    default=20,
                    min=1,
                    max=10000,
                    step=1,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, scale_low: float, scale_high: float, freq_cutoff: int) -> io.NodeOutput:
        patched = model.clone()
        patched.set_model_sampler_pre_cfg_function(methods.FreSca(scale_low, scale_high, freq_cutoff))
        return io.NodeOutput(patched)


class TemporalScoreRescaling(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        number = {"advanced": True, "display_mode": io.NumberDisplay.number, "min": 0.01, "max": 100.0, "step": 0.001}
        return io.Schema(
            node_id="TemporalScoreRescaling",
            display_name="TSR - Temporal Score Rescaling",
            category="model/patch/unet",
            description="Makes pictures sharper, or more varied, by scaling the score (TSR, Xu et al., 2025).",
            inputs=[
                _model(),
                io.Float.Input(
                    "tsr_k", tooltip="Below 1 sharper, above 1 more varied, 1 no change.", default=0.95, **number
                ),
                io.Float.Input(
                    "tsr_sigma",
                    tooltip="Size of the affected structure: larger acts earlier.",
                    default=1.0,
                    **number,
                ),
            ],
            outputs=[io.Model.Output(display_name="patched_model")],
        )

    @classmethod
    def execute(cls, model: Any, tsr_k: float, tsr_sigma: float) -> io.NodeOutput:
        patched = model.clone()
        patched.set_model_sampler_post_cfg_function(methods.TemporalScoreRescaling(tsr_k, tsr_sigma))
        return io.NodeOutput(patched)


class RenormCFG(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RenormCFG",
            category="model/patch",
            description="Keeps guidance from lengthening predictions, and leaves it out at high noise (Lumina 2).",
            inputs=[
                _model(),
                io.Float.Input(
                    "cfg_trunc",
                    tooltip="Noise level from which on there is no guidance.",
                    advanced=True,
                    default=100,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                ),
                io.Float.Input(
                    "renorm_cfg",
                    tooltip="Longest prediction allowed, in lengths of the positive one; 0 means any.",
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
    def execute(cls, model: Any, cfg_trunc: float, renorm_cfg: float) -> io.NodeOutput:
        patched = model.clone()
        patched.set_model_sampler_cfg_function(methods.RenormCFG(cfg_trunc, renorm_cfg))
        return io.NodeOutput(patched)


NODES = {
    "comfy_extras.nodes_tcfg": [TCFG],
    "comfy_extras.nodes_fresca": [FreSca],
    "comfy_extras.nodes_eps": [TemporalScoreRescaling],
    "comfy_extras.nodes_lumina2": [RenormCFG],
}
