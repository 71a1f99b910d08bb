"""Noise schedules that belong to certain families of models."""

from __future__ import annotations

import math

import numpy as np
import torch

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
        cells = 4096 if latent is None else math.prod(latent["samples"].shape[2:])
        slope = (max_shift - base_shift) / (4096 - 1024)
        sigmas = _shifted(torch.linspace(1, 0, steps + 1), base_shift + slope * (cells - 1024))
        if stretch:
            inner = sigmas != 0
            below = 1.0 - sigmas[inner]
            sigmas[inner] = 1.0 - below / (below[-1] / (1.0 - terminal))
        return io.NodeOutput(sigmas)


# "Align Your Steps" (Sabour et al., 2024): noise levels of 10 steps; for SD1 and SDXL those of the published time
# steps in the models' own table.
_ALIGNED = {
    "SD1": [
        14.6146412,
        6.4745760,
        3.8636746,
        2.6946151,
        1.8841921,
        1.3943805,
        0.9642584,
        0.6523686,
        0.3977456,
        0.1515233,
        0.0291672,
    ],
    "SDXL": [
        14.6146412,
        6.3184485,
        3.7681789,
        2.1811481,
        1.3405244,
        0.8620721,
        0.5550693,
        0.3798541,
        0.2332364,
        0.1114188,
        0.0291672,
    ],
    "SVD": [700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002],
}


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
                io.Float.Input(
                    "denoise", tooltip="Part of the schedule to run.", default=1.0, min=0.0, max=1.0, step=0.01
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, model_type: str, steps: int, denoise: float) -> io.NodeOutput:
        total = steps
        if denoise < 1.0:
            if denoise <= 0.0:
                return io.NodeOutput(torch.empty(0))
            total = round(steps * denoise)
        levels = _ALIGNED[model_type]
        if steps + 1 != len(levels):
            levels = _log_interpolated(levels, steps + 1)
        sigmas = torch.tensor(levels[-(total + 1) :], dtype=torch.float32)
        sigmas[-1] = 0
        return io.NodeOutput(sigmas)


def _log_interpolated(levels: list[float], count: int) -> list[float]:
    """`count` noise levels on straight lines through the logarithms of the given ones."""
    logarithms = np.log(levels[::-1])
    places = np.linspace(0, 1, count)
    return np.exp(np.interp(places, np.linspace(0, 1, len(levels)), logarithms))[::-1].tolist()


NODES = {
    "comfy_extras.nodes_flux": [Flux2Scheduler],
    "comfy_extras.nodes_lt": [LTXVScheduler],
    "comfy_extras.nodes_align_your_steps": [AlignYourStepsScheduler],
}
