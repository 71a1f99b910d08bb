"""Noise schedules that were optimised for certain models and written down in tables."""

from __future__ import annotations

from comfy.sampling import tabled_schedules
from comfy_api.latest import io


def _denoise() -> io.Float.Input:
    return io.Float.Input("denoise", tooltip="Part of the schedule to run.", default=1.0, min=0.0, max=1.0, step=0.01)


class AlignYourStepsScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="AlignYourStepsScheduler",
            category="model/sampling/schedulers",
            description=("Noise levels that were optimised for each model (Align Your Steps, Sabour et al., 2024)."),
            inputs=[
                io.Combo.Input("model_type", options=["SD1", "SDXL", "SVD"], tooltip="Family of the model."),
                io.Int.Input("steps", tooltip="Number of steps.", default=10, min=1, max=10000),
                _denoise(),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model_type: str, steps: int, denoise: float) -> io.NodeOutput:
        return io.NodeOutput(tabled_schedules.aligned_schedule(model_type, steps, denoise))


class OptimalStepsScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="OptimalStepsScheduler",
            category="model/sampling/schedulers",
            description="Noise levels that were optimised for flow models (OptimalSteps, Pei et al., 2025).",
            inputs=[
                io.Combo.Input("model_type", options=["FLUX", "Wan", "Chroma"], tooltip="Family of the model."),
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=3, max=1000),
                _denoise(),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model_type: str, steps: int, denoise: float) -> io.NodeOutput:
        return io.NodeOutput(tabled_schedules.optimal_schedule(model_type, steps, denoise))


class GITSScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="GITSScheduler",
            category="model/sampling/schedulers",
            description="Noise levels by the curvature of sampling paths, for few steps (GITS, Chen et al., 2024).",
            inputs=[
                io.Float.Input(
                    "coeff",
                    tooltip="Larger values put more steps at low noise.",
                    advanced=True,
                    default=1.20,
                    min=0.80,
                    max=1.50,
                    step=0.05,
                ),
                io.Int.Input("steps", tooltip="Number of steps.", default=10, min=2, max=1000),
                _denoise(),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, coeff: float, steps: int, denoise: float) -> io.NodeOutput:
        return io.NodeOutput(tabled_schedules.gits_schedule(coeff, steps, denoise))


NODES = {
    "comfy_extras.nodes_align_your_steps": [AlignYourStepsScheduler],
    "comfy_extras.nodes_optimalsteps": [OptimalStepsScheduler],
    "comfy_extras.nodes_gits": [GITSScheduler],
}
