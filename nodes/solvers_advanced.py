"""Nodes for solvers with options of their own: CFG++ and consistency models."""

from __future__ import annotations

import comfy.samplers
from comfy.sampling.solvers.euler import sample_euler_cfg_pp_alternative
from comfy.sampling.solvers.lcm_upscale import sample_lcm_upscale
from comfy_api.latest import io


class SamplerEulerCFGpp(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerEulerCFGpp",
            display_name="SamplerEulerCFG++",
            category="experimental",
            description="Euler's method with CFG++ guidance (Chung et al., 2024).",
            is_experimental=True,
            inputs=[
                io.Combo.Input(
                    "version",
                    options=["regular", "alternative"],
                    tooltip="As in the paper, or with the latent itself moved by the guidance.",
                    advanced=True,
                )
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, version: str) -> io.NodeOutput:
        if version == "alternative":
            return io.NodeOutput(comfy.samplers.KSAMPLER(sample_euler_cfg_pp_alternative))
        return io.NodeOutput(comfy.samplers.ksampler("euler_cfg_pp"))


class SamplerLCM(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerLCM",
            category="model/sampling/samplers",
            description="Sampling of consistency models: denoise fully, add noise again (Luo et al., 2023).",
            inputs=[
                io.Float.Input(
                    "s_noise", tooltip="Strength of the noise at first.", default=1.0, min=0.0, max=64.0, step=0.01
                ),
                io.Float.Input(
                    "s_noise_end", tooltip="Strength of the noise at last.", default=1.0, min=0.0, max=64.0, step=0.01
                ),
                io.Float.Input(
                    "noise_clip_std",
                    tooltip="Largest noise, in standard deviations; 0 means any.",
                    default=0.0,
                    min=0.0,
                    max=10.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, s_noise: float, s_noise_end: float, noise_clip_std: float) -> io.NodeOutput:
        options = {"s_noise": s_noise, "s_noise_end": s_noise_end, "noise_clip_std": noise_clip_std}
        return io.NodeOutput(comfy.samplers.ksampler("lcm", options))


class SamplerLCMUpscale(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerLCMUpscale",
            category="model/sampling/samplers",
            description="Sampling of consistency models in which the picture grows over the first steps.",
            inputs=[
                io.Float.Input(
                    "scale_ratio",
                    tooltip="Size at the end, in sizes at the beginning.",
                    advanced=True,
                    default=1.0,
                    min=0.1,
                    max=20.0,
                    step=0.01,
                ),
                io.Int.Input(
                    "scale_steps",
                    tooltip="Over how many steps it grows; -1 means half of them.",
                    advanced=True,
                    default=-1,
                    min=-1,
                    max=1000,
                    step=1,
                ),
                io.Combo.Input(
                    "upscale_method",
                    options=["bislerp", "nearest-exact", "bilinear", "area", "bicubic"],
                    tooltip="How values between cells are found.",
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, scale_ratio: float, scale_steps: int, upscale_method: str) -> io.NodeOutput:
        options = {
            "total_upscale": scale_ratio,
            "upscale_steps": None if scale_steps < 0 else scale_steps,
            "upscale_method": upscale_method,
        }
        return io.NodeOutput(comfy.samplers.KSAMPLER(sample_lcm_upscale, options))


NODES = {"comfy_extras.nodes_advanced_samplers": [SamplerEulerCFGpp, SamplerLCM, SamplerLCMUpscale]}
