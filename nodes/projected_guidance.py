"""The node for adaptive projected guidance (arXiv:2410.02416)."""

from __future__ import annotations

from typing import Any

import torch

from comfy.sampling.solvers.common import host_sigma
from comfy_api.latest import io


class _Momentum:
    """Running sum of guidance directions within one run of a sampler."""

    def __init__(self, decay: float):
        self.decay = decay
        self.sum: torch.Tensor | None = None
        self.sigma = float("inf")

    def add(self, direction: torch.Tensor, sigma: float) -> torch.Tensor:
        if sigma > self.sigma or self.sum is None or self.sum.shape != direction.shape:
            # The noise rises: another run has begun.
            self.sum = direction
        else:
            self.sum = self.decay * self.sum + direction
        self.sigma = sigma
        return self.sum


class APG(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="APG",
            display_name="Adaptive Projected Guidance",
            category="model/sampling/custom",
            description=(
                "Guides mostly at right angles to the prediction, which keeps colours sound (APG, Sadat et al., 2024)."
            ),
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "eta",
                    tooltip="How much of the parallel part to keep.",
                    advanced=True,
                    default=1.0,
                    min=-10.0,
                    max=10.0,
                    step=0.01,
                ),
                io.Float.Input(
                    "norm_threshold",
                    tooltip="Longest guidance allowed; 0 means any.",
                    advanced=True,
                    default=5.0,
                    min=0.0,
                    max=50.0,
                    step=0.1,
                ),
                io.Float.Input(
                    "momentum",
                    tooltip="How much of earlier steps' guidance to add; negative values brake.",
                    advanced=True,
                    default=0.0,
                    min=-5.0,
                    max=1.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, eta: float, norm_threshold: float, momentum: float) -> io.NodeOutput:
        memory = _Momentum(momentum)

        def project(args: dict) -> list:
            outputs = args["conds_out"]
            if len(outputs) == 1:
                return outputs
            cond, uncond, scale = outputs[0], outputs[1], args["cond_scale"]
            direction = cond - uncond
            guidance = direction
            if momentum != 0:
                guidance = memory.add(direction, host_sigma(args["sigma"]))
            if norm_threshold > 0:
                length = torch.linalg.vector_norm(guidance, dim=(-1, -2, -3), keepdim=True)
                guidance = guidance * torch.minimum(torch.ones_like(length), norm_threshold / length)
            along = torch.nn.functional.normalize(cond, dim=(-1, -2, -3))
            parallel = (guidance * along).sum(dim=(-1, -2, -3), keepdim=True) * along
            guidance = (guidance - parallel) + eta * parallel
            # Such that the guidance that follows gives cond + scale * guidance.
            outputs[0] = uncond + direction / scale + guidance
            return outputs

        patched = model.clone()
        patched.set_model_sampler_pre_cfg_function(project)
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_apg": [APG]}
