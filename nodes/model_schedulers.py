"""Noise schedules that belong to certain families of models."""

from __future__ import annotations

import math

import torch

from comfy.sampling import schedules
from comfy_api.latest import io

from .constants import MAX_RESOLUTION


def _shifted(times: torch.Tensor, mu: float) -> torch.Tensor:
    """Times 1 … 0 moved towards 1 by mu (Esser et al., 2024, section 5.3.2, in exponential form)."""
    inside = math.exp(mu) / (math.exp(mu) + (1 / times.clamp(min=1e-20) - 1))
    return torch.where(times > 0, inside, torch.zeros_like(times))


class Flux2Scheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Flux2Scheduler",
            category="model/sampling/schedulers",
            description=("Noise levels for FLUX.2, shifted by the size of the picture and the number of steps."),
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=4096),
                io.Int.Input(
                    "width", tooltip="Width of the picture in pixels.", default=1024, min=16, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=1,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, width: int, height: int) -> io.NodeOutput:
        patches = round(width * height / (16 * 16))
        return io.NodeOutput(_shifted(torch.linspace(1, 0, steps + 1), _flux2_shift(patches, steps)))


def _flux2_shift(patches: int, steps: int) -> float:
    """Shift that the model's makers fitted (FLUX.2 inference code, Apache-2.0): linear in patches and in steps."""
    at_10, at_200 = 8.73809524e-05 * patches + 1.89833333, 0.00016927 * patches + 0.45666666
    if patches > 4300:
        return at_200
    slope = (at_200 - at_10) / 190
    return at_200 + slope * (steps - 200)


def ltxv_shift(latent: dict | None, max_shift: float, base_shift: float) -> float:
    """Shift (mu) of LTX-Video for a LATENT: a straight line through (1024 cells, base_shift), (4096 cells, max_shift).

    Without a latent it is that of 4096 cells; of a nested one the picture counts.
    """
    cells = 4096 if latent is None else math.prod(latent["samples"].shape[2:])
    return base_shift + (max_shift - base_shift) / (4096 - 1024) * (cells - 1024)


class LTXVScheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LTXVScheduler",
            category="model/sampling/schedulers",
            description="Noise levels for LTX-Video, shifted by the size of the video.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=10000),
                io.Float.Input(
                    "max_shift", tooltip="Shift for 4096 latent cells.", default=2.05, min=0.0, max=100.0, step=0.01
                ),
                io.Float.Input(
                    "base_shift", tooltip="Shift for 1024 latent cells.", default=0.95, min=0.0, max=100.0, step=0.01
                ),
                io.Boolean.Input(
                    "stretch",
                    tooltip="Whether to stretch the schedule so that it ends at a given level.",
                    advanced=True,
                    default=True,
                ),
                io.Float.Input(
                    "terminal", tooltip="That level.", advanced=True, default=0.1, min=0.0, max=0.99, step=0.01
                ),
                io.Latent.Input("latent", tooltip="Latents whose size decides; 4096 cells without.", optional=True),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(
        cls,
        steps: int,
        max_shift: float,
        base_shift: float,
        stretch: bool,
        terminal: float,
        latent: dict | None = None,
    ) -> io.NodeOutput:
        sigmas = _shifted(torch.linspace(1, 0, steps + 1), ltxv_shift(latent, max_shift, base_shift))
        if stretch:
            inner = sigmas != 0
            below = 1.0 - sigmas[inner]
            sigmas[inner] = 1.0 - below / (below[-1] / (1.0 - terminal))
        return io.NodeOutput(sigmas)


class Ideogram4Scheduler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Ideogram4Scheduler",
            display_name="Ideogram 4 Scheduler",
            category="model/sampling/schedulers",
            description="Noise levels for Ideogram 4: quantiles of a logit-normal distribution, shifted by the size.",
            inputs=[
                io.Int.Input("steps", tooltip="Number of steps.", default=20, min=1, max=200),
                io.Int.Input(
                    "width", tooltip="Width of the picture in pixels.", default=1024, min=256, max=8192, step=16
                ),
                io.Int.Input(
                    "height", tooltip="Height of the picture in pixels.", default=1024, min=256, max=8192, step=16
                ),
                io.Float.Input(
                    "mu",
                    tooltip="Middle of the distribution; larger values spend more steps at high noise.",
                    default=0.0,
                    min=-10.0,
                    max=10.0,
                    step=0.05,
                ),
                io.Float.Input(
                    "std", tooltip="How widely the levels are spread.", default=1.75, min=0.1, max=5.0, step=0.05
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, steps: int, width: int, height: int, mu: float, std: float) -> io.NodeOutput:
        return io.NodeOutput(schedules.logit_normal_schedule(steps, mu + _size_shift(width, height), std))


def _size_shift(width: int, height: int) -> float:
    """By how much the middle of a logit-normal schedule moves: a flow at n times the pixels of 512 x 512 needs sqrt(n)
    times the noise (Esser et al., 2024, section 5.3.2)."""
    return 0.5 * math.log(width * height / (512 * 512))


NODES = {
    "comfy_extras.nodes_flux": [Flux2Scheduler],
    "comfy_extras.nodes_lt": [LTXVScheduler],
    "comfy_extras.nodes_ideogram4": [Ideogram4Scheduler],
}
