"""Nodes that choose a solver, the method that takes the steps of sampling.

SAMPLER: what `comfy.samplers.ksampler` gives.
"""

from __future__ import annotations

from typing import Any

import comfy.samplers
from comfy_api.latest import io


class KSamplerSelect(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KSamplerSelect",
            category="model/sampling/samplers",
            description="A solver by its name.",
            inputs=[io.Combo.Input("sampler_name", options=comfy.samplers.KSampler.SAMPLERS, tooltip="Name.")],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, sampler_name: str) -> io.NodeOutput:
        return io.NodeOutput(comfy.samplers.sampler_object(sampler_name))


class SamplerEulerAncestral(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerEulerAncestral",
            category="model/sampling/samplers",
            description="Euler's method with fresh noise at each step.",
            inputs=[
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, eta: float, s_noise: float) -> io.NodeOutput:
        return io.NodeOutput(comfy.samplers.ksampler("euler_ancestral", {"eta": eta, "s_noise": s_noise}))


class SamplerEulerAncestralCFGPP(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerEulerAncestralCFGPP",
            display_name="SamplerEulerAncestralCFG++",
            category="model/sampling/samplers",
            description="Euler's method with fresh noise and CFG++ guidance (Chung et al., 2024).",
            inputs=[
                io.Float.Input("eta", tooltip="How much noise.", default=1.0, min=0.0, max=1.0, step=0.01, round=False),
                io.Float.Input(
                    "s_noise", tooltip="Strength of the noise.", default=1.0, min=0.0, max=10.0, step=0.01, round=False
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, eta: float, s_noise: float) -> io.NodeOutput:
        options = {"eta": eta, "s_noise": s_noise}
        return io.NodeOutput(comfy.samplers.ksampler("euler_ancestral_cfg_pp", options))


class SamplerLMS(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerLMS",
            category="model/sampling/samplers",
            description="Linear multistep method.",
            inputs=[
                io.Int.Input(
                    "order", tooltip="How many earlier steps are used.", advanced=True, default=4, min=1, max=100
                )
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, order: int) -> io.NodeOutput:
        return io.NodeOutput(comfy.samplers.ksampler("lms", {"order": order}))


def _on_device(name: str, noise_device: str) -> str:
    """Name of the solver that draws its noise on that device."""
    return f"{name}_gpu" if noise_device == "gpu" else name


class SamplerDPMPP_3M_SDE(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerDPMPP_3M_SDE",
            category="model/sampling/samplers",
            description="DPM-Solver++ of order 3 with noise.",
            inputs=[
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Combo.Input(
                    "noise_device",
                    options=["gpu", "cpu"],
                    tooltip="Where the noise is drawn; the CPU's is the same on every machine.",
                    advanced=True,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, eta: float, s_noise: float, noise_device: str) -> io.NodeOutput:
        options = {"eta": eta, "s_noise": s_noise}
        return io.NodeOutput(comfy.samplers.ksampler(_on_device("dpmpp_3m_sde", noise_device), options))


class SamplerDPMPP_2M_SDE(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerDPMPP_2M_SDE",
            category="model/sampling/samplers",
            description="DPM-Solver++ of order 2 with noise.",
            inputs=[
                io.Combo.Input("solver_type", options=["midpoint", "heun"], tooltip="How the second order is reached."),
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Combo.Input(
                    "noise_device",
                    options=["gpu", "cpu"],
                    tooltip="Where the noise is drawn; the CPU's is the same on every machine.",
                    advanced=True,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, solver_type: str, eta: float, s_noise: float, noise_device: str) -> io.NodeOutput:
        options = {"eta": eta, "s_noise": s_noise, "solver_type": solver_type}
        return io.NodeOutput(comfy.samplers.ksampler(_on_device("dpmpp_2m_sde", noise_device), options))


class SamplerDPMPP_SDE(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerDPMPP_SDE",
            category="model/sampling/samplers",
            description="DPM-Solver++ in single steps, with noise.",
            inputs=[
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "r",
                    tooltip="Where within a step the model is asked a second time.",
                    advanced=True,
                    default=0.5,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Combo.Input(
                    "noise_device",
                    options=["gpu", "cpu"],
                    tooltip="Where the noise is drawn; the CPU's is the same on every machine.",
                    advanced=True,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, eta: float, s_noise: float, r: float, noise_device: str) -> io.NodeOutput:
        options = {"eta": eta, "s_noise": s_noise, "r": r}
        return io.NodeOutput(comfy.samplers.ksampler(_on_device("dpmpp_sde", noise_device), options))


class SamplerDPMPP_2S_Ancestral(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerDPMPP_2S_Ancestral",
            category="model/sampling/samplers",
            description="DPM-Solver++ of order 2 in single steps, with fresh noise at each.",
            inputs=[
                io.Float.Input(
                    "eta", tooltip="How much noise.", default=1.0, min=0.0, max=100.0, step=0.01, round=False
                ),
                io.Float.Input(
                    "s_noise", tooltip="Strength of the noise.", default=1.0, min=0.0, max=100.0, step=0.01, round=False
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, eta: float, s_noise: float) -> io.NodeOutput:
        return io.NodeOutput(comfy.samplers.ksampler("dpmpp_2s_ancestral", {"eta": eta, "s_noise": s_noise}))


class SamplerDPMAdaptative(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerDPMAdaptative",
            category="model/sampling/samplers",
            description="DPM-Solver with steps of its own choice.",
            inputs=[
                io.Int.Input("order", tooltip="Order of the method.", advanced=True, default=3, min=2, max=3),
                io.Float.Input(
                    "rtol",
                    tooltip="Relative error allowed.",
                    advanced=True,
                    default=0.05,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "atol",
                    tooltip="Absolute error allowed.",
                    advanced=True,
                    default=0.0078,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "h_init",
                    tooltip="First step size.",
                    advanced=True,
                    default=0.05,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "pcoeff",
                    tooltip="Proportional part of the step size control.",
                    advanced=True,
                    default=0.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "icoeff",
                    tooltip="Integral part of the step size control.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "dcoeff",
                    tooltip="Differential part of the step size control.",
                    advanced=True,
                    default=0.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "accept_safety",
                    tooltip="How safe a step must be.",
                    advanced=True,
                    default=0.81,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=0.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, **options: Any) -> io.NodeOutput:
        return io.NodeOutput(comfy.samplers.ksampler("dpm_adaptive", options))


class SamplerSEEDS2(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerSEEDS2",
            category="model/sampling/samplers",
            description="SEEDS of order 2, an exponential solver with noise (Gonzalez et al., 2023).",
            inputs=[
                io.Combo.Input("solver_type", options=["phi_1", "phi_2"], tooltip="How the second order is reached."),
                io.Float.Input(
                    "eta",
                    tooltip="How much noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "r",
                    tooltip="Where within a step the model is asked a second time.",
                    advanced=True,
                    default=0.5,
                    min=0.01,
                    max=1.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, solver_type: str, eta: float, s_noise: float, r: float) -> io.NodeOutput:
        options = {"eta": eta, "s_noise": s_noise, "r": r, "solver_type": solver_type}
        return io.NodeOutput(comfy.samplers.ksampler("seeds_2", options))


class SamplerER_SDE(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerER_SDE",
            category="model/sampling/samplers",
            description="Solver of extended reverse-time equations (ER-SDE, Cui et al., 2023).",
            inputs=[
                io.Combo.Input(
                    "solver_type", options=["ER-SDE", "Reverse-time SDE", "ODE"], tooltip="Equation to solve."
                ),
                io.Int.Input("max_stage", tooltip="Order of the method.", advanced=True, default=3, min=1, max=3),
                io.Float.Input(
                    "eta",
                    tooltip="How much noise; 0 gives none.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=10.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(cls, solver_type: str, max_stage: int, eta: float, s_noise: float) -> io.NodeOutput:
        from comfy.sampling.solvers.er_sde import noise_scaler_for

        options = {"noise_scaler": noise_scaler_for(solver_type, eta), "max_stage": max_stage, "s_noise": s_noise}
        return io.NodeOutput(comfy.samplers.ksampler("er_sde", options))


class SamplerSASolver(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerSASolver",
            category="model/sampling/samplers",
            description="Adams predictor and corrector with noise (SA-Solver, Xue et al., 2023).",
            inputs=[
                io.Model.Input("model", tooltip="Model whose noise levels the range refers to."),
                io.Float.Input(
                    "eta",
                    tooltip="How much noise within the range.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=10.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "sde_start_percent",
                    tooltip="Where noise begins to be added; 0 is the first step.",
                    advanced=True,
                    default=0.2,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                ),
                io.Float.Input(
                    "sde_end_percent",
                    tooltip="Where it ends; 1 is the last step.",
                    advanced=True,
                    default=0.8,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                ),
                io.Float.Input(
                    "s_noise",
                    tooltip="Strength of the noise.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
                io.Int.Input(
                    "predictor_order", tooltip="Order of the prediction.", advanced=True, default=3, min=1, max=6
                ),
                io.Int.Input(
                    "corrector_order",
                    tooltip="Order of the correction; 0 does without.",
                    advanced=True,
                    default=4,
                    min=0,
                    max=6,
                ),
                io.Boolean.Input(
                    "use_pece", tooltip="Whether to ask the model again after the correction.", advanced=True
                ),
                io.Boolean.Input("simple_order_2", tooltip="Whether order 2 uses the simpler formula.", advanced=True),
            ],
            outputs=[io.Sampler.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        eta: float,
        sde_start_percent: float,
        sde_end_percent: float,
        s_noise: float,
        predictor_order: int,
        corrector_order: int,
        use_pece: bool,
        simple_order_2: bool,
    ) -> io.NodeOutput:
        from comfy.sampling.solvers.sa_solver import get_tau_interval_func

        sampling = model.get_model_object("model_sampling")
        begin, end = (sampling.percent_to_sigma(p) for p in (sde_start_percent, sde_end_percent))
        options = {
            "tau_func": get_tau_interval_func(begin, end, eta),
            "s_noise": s_noise,
            "predictor_order": predictor_order,
            "corrector_order": corrector_order,
            "use_pece": use_pece,
            "simple_order_2": simple_order_2,
        }
        return io.NodeOutput(comfy.samplers.ksampler("sa_solver", options))


NODES = {
    "comfy_extras.nodes_custom_sampler": [
        KSamplerSelect,
        SamplerEulerAncestral,
        SamplerEulerAncestralCFGPP,
        SamplerLMS,
        SamplerDPMPP_3M_SDE,
        SamplerDPMPP_2M_SDE,
        SamplerDPMPP_SDE,
        SamplerDPMPP_2S_Ancestral,
        SamplerDPMAdaptative,
        SamplerSEEDS2,
        SamplerER_SDE,
        SamplerSASolver,
    ],
}
