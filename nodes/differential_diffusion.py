"""The node that reads a grey mask as how much may change (arXiv:2306.00950)."""

from __future__ import annotations

from typing import Any

import torch

from comfy_api.latest import io


class DifferentialDiffusion(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="DifferentialDiffusion",
            display_name="Differential Diffusion",
            category="experimental",
            description=(
                "Reads a grey mask as how much may change, from nothing to everything (Levin and Fried, 2023)."
            ),
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Float.Input(
                    "strength",
                    tooltip="How far to go: 0 leaves masks as they are.",
                    optional=True,
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, strength: float = 1.0) -> io.NodeOutput:
        def thresholds(sigma: torch.Tensor, denoise_mask: torch.Tensor, extra_options: dict) -> torch.Tensor:
            network = extra_options["model"]
            sigmas = extra_options["sigmas"]
            sampling = network.inner_model.model_sampling
            # Tensors all along: to ask which sigma is the larger one would wait for the device.
            last = torch.maximum(sigmas[-1], sampling.sigma_min.to(sigmas))
            begin, end = sampling.timestep(sigmas[0]), sampling.timestep(last)
            now = sampling.timestep(sigma[0])
            # As noise falls, ever smaller values of the mask count as free to change.
            threshold = (now - end) / (begin - end)
            binary = (denoise_mask >= threshold).to(denoise_mask.dtype)
            return strength * binary + (1.0 - strength) * denoise_mask

        patched = model.clone()
        patched.set_model_denoise_mask_function(thresholds)
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_differential_diffusion": [DifferentialDiffusion]}
