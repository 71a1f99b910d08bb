"""Nodes that make noise schedules. SIGMAS: 1-d float tensor of noise levels, falling, mostly ending in 0."""

from __future__ import annotations

from typing import Any

import torch

import comfy.samplers
from comfy.sampling import schedules
from comfy_api.latest import io


class BasicScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BasicScheduler",
            category="model/sampling/schedulers",
            description="Noise levels of a model by one of the usual schedules.",
            inputs=[
                io.Model.Input("model", tooltip="Model whose noise levels to use."),
                io.Combo.Input("scheduler", options=comfy.samplers.KSampler.SCHEDULERS, tooltip="How they are spaced."),
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "denoise",
                    tooltip="Part of the schedule to run: 1 all of it, less begins later.",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model: Any, scheduler: str, steps: int, denoise: float) -> io.NodeOutput:
        total = steps
        if denoise < 1.0:
            if denoise <= 0.0:
                return io.NodeOutput(torch.empty(0))
            total = int(steps / denoise)
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), scheduler, total)
        return io.NodeOutput(sigmas.cpu()[-(steps + 1) :])


class KarrasScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="KarrasScheduler",
            category="model/sampling/schedulers",
            description="Noise levels after Karras et al. (2022), equation 5.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "sigma_max",
                    tooltip="First noise level.",
                    advanced=True,
                    default=14.614642,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "sigma_min",
                    tooltip="Last noise level before 0.",
                    advanced=True,
                    default=0.0291675,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "rho",
                    tooltip="Larger values put more steps at low noise.",
                    advanced=True,
                    default=7.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, sigma_max: float, sigma_min: float, rho: float) -> io.NodeOutput:
        return io.NodeOutput(schedules.get_sigmas_karras(n=steps, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho))


class ExponentialScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ExponentialScheduler",
            category="model/sampling/schedulers",
            description="Noise levels with equal ratios.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "sigma_max",
                    tooltip="First noise level.",
                    advanced=True,
                    default=14.614642,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "sigma_min",
                    tooltip="Last noise level before 0.",
                    advanced=True,
                    default=0.0291675,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, sigma_max: float, sigma_min: float) -> io.NodeOutput:
        return io.NodeOutput(schedules.get_sigmas_exponential(n=steps, sigma_min=sigma_min, sigma_max=sigma_max))


class PolyexponentialScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PolyexponentialScheduler",
            category="model/sampling/schedulers",
            description="Noise levels whose logarithm follows a power.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "sigma_max",
                    tooltip="First noise level.",
                    advanced=True,
                    default=14.614642,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "sigma_min",
                    tooltip="Last noise level before 0.",
                    advanced=True,
                    default=0.0291675,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "rho",
                    tooltip="The power; 1 gives equal ratios.",
                    advanced=True,
                    default=1.0,
                    min=0.0,
                    max=100.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, sigma_max: float, sigma_min: float, rho: float) -> io.NodeOutput:
        sigmas = schedules.get_sigmas_polyexponential(n=steps, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho)
        return io.NodeOutput(sigmas)


class LaplaceScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LaplaceScheduler",
            category="model/sampling/schedulers",
            description="Noise levels that gather around a middle value, by a Laplace distribution.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "sigma_max",
                    tooltip="First noise level.",
                    advanced=True,
                    default=14.614642,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "sigma_min",
                    tooltip="Last noise level.",
                    advanced=True,
                    default=0.0291675,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "mu",
                    tooltip="Logarithm of the middle.",
                    advanced=True,
                    default=0.0,
                    min=-10.0,
                    max=10.0,
                    step=0.1,
                    round=False,
                ),
                io.Float.Input(
                    "beta",
                    tooltip="How widely they are spread.",
                    advanced=True,
                    default=0.5,
                    min=0.0,
                    max=10.0,
                    step=0.1,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, sigma_max: float, sigma_min: float, mu: float, beta: float) -> io.NodeOutput:
        sigmas = schedules.get_sigmas_laplace(n=steps, sigma_min=sigma_min, sigma_max=sigma_max, mu=mu, beta=beta)
        return io.NodeOutput(sigmas)


class VPScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VPScheduler",
            category="model/sampling/schedulers",
            description="Noise levels of a continuous variance preserving process.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "beta_d",
                    tooltip="Growth of the noise rate.",
                    advanced=True,
                    default=19.9,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "beta_min",
                    tooltip="Noise rate at the end.",
                    advanced=True,
                    default=0.1,
                    min=0.0,
                    max=5000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "eps_s",
                    tooltip="Smallest time.",
                    advanced=True,
                    default=0.001,
                    min=0.0,
                    max=1.0,
                    step=0.0001,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, beta_d: float, beta_min: float, eps_s: float) -> io.NodeOutput:
        return io.NodeOutput(schedules.get_sigmas_vp(n=steps, beta_d=beta_d, beta_min=beta_min, eps_s=eps_s))


class BetaSamplingScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BetaSamplingScheduler",
            category="model/sampling/schedulers",
            description="Noise levels of a model, picked by a beta distribution.",
            inputs=[
                io.Model.Input("model", tooltip="Model whose noise levels to use."),
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "alpha",
                    tooltip="First parameter of the distribution.",
                    advanced=True,
                    default=0.6,
                    min=0.0,
                    max=50.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "beta",
                    tooltip="Second parameter of the distribution.",
                    advanced=True,
                    default=0.6,
                    min=0.0,
                    max=50.0,
                    step=0.01,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model: Any, steps: int, alpha: float, beta: float) -> io.NodeOutput:
        sampling = model.get_model_object("model_sampling")
        return io.NodeOutput(schedules.beta_scheduler(sampling, steps, alpha=alpha, beta=beta))


class SDTurboScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SDTurboScheduler",
            category="model/sampling/schedulers",
            description="Noise levels for turbo models, which take few steps.",
            inputs=[
                io.Model.Input("model", tooltip="Model whose noise levels to use."),
                io.Int.Input("steps", tooltip="Number of steps.", default=1, min=1, max=10),
                io.Float.Input(
                    "denoise", tooltip="Part of the schedule to run.", default=1.0, min=0, max=1.0, step=0.01
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model: Any, steps: int, denoise: float) -> io.NodeOutput:
        # Turbo models were distilled at every hundredth of 1000 time steps.
        begin = 10 - int(10 * denoise)
        timesteps = torch.flip(torch.arange(1, 11) * 100 - 1, (0,))[begin : begin + steps]
        sigmas = model.get_model_object("model_sampling").sigma(timesteps)
        return io.NodeOutput(torch.cat([sigmas, sigmas.new_zeros([1])]))


NODES = {
    "comfy_extras.nodes_custom_sampler": [
        BasicScheduler,
        KarrasScheduler,
        ExponentialScheduler,
        PolyexponentialScheduler,
        LaplaceScheduler,
        VPScheduler,
        BetaSamplingScheduler,
        SDTurboScheduler,
    ],
}
