"""Nodes that change noise schedules. SIGMAS: 1-d float tensor of noise levels, falling, mostly ending in 0."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import torch

from comfy_api.latest import io


class SplitSigmas(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SplitSigmas",
            category="model/sampling/sigmas",
            description="Splits a schedule at a step, so that two samplers can share it.",
            inputs=[
                io.Sigmas.Input("sigmas", tooltip="Schedule to split."),
                io.Int.Input("step", tooltip="Step to split at.", default=0, min=0, max=10000),
            ],
            outputs=[
                io.Sigmas.Output(display_name="high_sigmas", tooltip="Noise levels before the step."),
                io.Sigmas.Output(display_name="low_sigmas", tooltip="Noise levels from the step on."),
            ],
        )

    @classmethod
    def execute(cls, sigmas: torch.Tensor, step: int) -> io.NodeOutput:
        return io.NodeOutput(sigmas[: step + 1], sigmas[step:])


class SplitSigmasDenoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SplitSigmasDenoise",
            category="model/sampling/sigmas",
            description="Splits a schedule so that the second part does a given share of the steps.",
            inputs=[
                io.Sigmas.Input("sigmas", tooltip="Schedule to split."),
                io.Float.Input(
                    "denoise", tooltip="Share of the second part.", default=1.0, min=0.0, max=1.0, step=0.01
                ),
            ],
            outputs=[
                io.Sigmas.Output(display_name="high_sigmas", tooltip="Noise levels of the first part."),
                io.Sigmas.Output(display_name="low_sigmas", tooltip="Noise levels of the second part."),
            ],
        )

    @classmethod
    def execute(cls, sigmas: torch.Tensor, denoise: float) -> io.NodeOutput:
        steps = max(sigmas.shape[-1] - 1, 0)
        second = round(steps * denoise)
        # Without steps in the second part the first one is empty as well, as it has always been.
        return io.NodeOutput(sigmas[: -second or 0], sigmas[-(second + 1) :])


class FlipSigmas(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FlipSigmas",
            category="model/sampling/sigmas",
            description="Reverses a schedule, for turning pictures back into noise.",
            inputs=[io.Sigmas.Input("sigmas", tooltip="Schedule to reverse.")],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, sigmas: torch.Tensor) -> io.NodeOutput:
        if len(sigmas) == 0:
            return io.NodeOutput(sigmas)
        flipped = sigmas.flip(0)
        if flipped[0] == 0:
            # Samplers divide by the noise level.
            flipped[0] = 0.0001
        return io.NodeOutput(flipped)


class SetFirstSigma(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SetFirstSigma",
            category="model/sampling/sigmas",
            description="Replaces the first noise level.",
            inputs=[
                io.Sigmas.Input("sigmas", tooltip="Schedule to change."),
                io.Float.Input(
                    "sigma",
                    tooltip="New first noise level.",
                    default=136.0,
                    min=0.0,
                    max=20000.0,
                    step=0.001,
                    round=False,
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, sigmas: torch.Tensor, sigma: float) -> io.NodeOutput:
        sigmas = sigmas.clone()
        sigmas[0] = sigma
        return io.NodeOutput(sigmas)


class ExtendIntermediateSigmas(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ExtendIntermediateSigmas",
            category="model/sampling/sigmas",
            description="Adds steps between those of a schedule.",
            inputs=[
                io.Sigmas.Input("sigmas", tooltip="Schedule to extend."),
                io.Int.Input("steps", tooltip="Into how many each step is divided.", default=2, min=1, max=100),
                io.Float.Input(
                    "start_at_sigma",
                    tooltip="Only below this noise level; -1 means everywhere.",
                    default=-1.0,
                    min=-1.0,
                    max=20000.0,
                    step=0.01,
                    round=False,
                ),
                io.Float.Input(
                    "end_at_sigma",
                    tooltip="Only above this noise level.",
                    default=12.0,
                    min=0.0,
                    max=20000.0,
                    step=0.01,
                    round=False,
                ),
                io.Combo.Input(
                    "spacing", options=["linear", "cosine", "sine"], tooltip="How new levels lie between the old ones."
                ),
            ],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(
        cls, sigmas: torch.Tensor, steps: int, start_at_sigma: float, end_at_sigma: float, spacing: str
    ) -> io.NodeOutput:
        upper = float("inf") if start_at_sigma < 0 else start_at_sigma
        shares = _SPACINGS[spacing](torch.linspace(0, 1, steps + 1)[1:-1])
        extended = []
        for level, following in itertools.pairwise(sigmas):
            extended.append(level[None])
            if end_at_sigma <= level <= upper:
                extended.append(level + (following - level) * shares.to(sigmas))
        return io.NodeOutput(torch.cat([*extended, sigmas[-1:]]))


_SPACINGS = {
    "linear": lambda x: x,
    "cosine": lambda x: torch.sin(x * math.pi / 2),
    "sine": lambda x: 1 - torch.cos(x * math.pi / 2),
}


class SamplingPercentToSigma(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplingPercentToSigma",
            category="model/sampling/sigmas",
            description="Noise level of a model at a part of the way through sampling.",
            inputs=[
                io.Model.Input("model", tooltip="Model whose noise levels to use."),
                io.Float.Input(
                    "sampling_percent", tooltip="0 is the begin, 1 the end.", default=0.0, min=0.0, max=1.0, step=0.0001
                ),
                io.Boolean.Input(
                    "return_actual_sigma",
                    tooltip=(
                        "Whether begin and end give the model's largest and smallest level, instead of "
                        "values beyond any."
                    ),
                    default=False,
                ),
            ],
            outputs=[io.Float.Output(display_name="sigma_value")],
        )

    @classmethod
    def execute(cls, model: Any, sampling_percent: float, return_actual_sigma: bool) -> io.NodeOutput:
        sampling = model.get_model_object("model_sampling")
        sigma = sampling.percent_to_sigma(sampling_percent)
        if return_actual_sigma and sampling_percent in (0.0, 1.0):
            sigma = sampling.sigma_max.item() if sampling_percent == 0.0 else sampling.sigma_min.item()
        return io.NodeOutput(sigma)


class ManualSigmas(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ManualSigmas",
            category="model/sampling/sigmas",
            description="Noise levels written as numbers.",
            is_experimental=True,
            inputs=[io.String.Input("sigmas", tooltip="The numbers, apart by commas or spaces.", default="1, 0.5")],
            outputs=[io.Sigmas.Output()],
        )

    @classmethod
    def execute(cls, sigmas: str) -> io.NodeOutput:
        numbers = re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", sigmas)
        return io.NodeOutput(torch.tensor([float(number) for number in numbers], dtype=torch.float32))


NODES = {
    "comfy_extras.nodes_custom_sampler": [
        SplitSigmas,
        SplitSigmasDenoise,
        FlipSigmas,
        SetFirstSigma,
        ExtendIntermediateSigmas,
        SamplingPercentToSigma,
        ManualSigmas,
    ],
}
