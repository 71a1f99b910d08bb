"""Nodes that set options on conditioning which only some models read."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from node_helpers import conditioning_set_values

from .images import scale_image


class FluxGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FluxGuidance",
            category="model/conditioning/flux",
            description="Sets the guidance that FLUX models were distilled with.",
            inputs=[
                io.Conditioning.Input("conditioning", tooltip="Conditioning to change."),
                io.Float.Input("guidance", tooltip="Strength.", default=3.5, min=0.0, max=100.0, step=0.1),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, conditioning: list, guidance: float) -> io.NodeOutput:
        return io.NodeOutput(conditioning_set_values(conditioning, {"guidance": guidance}))


class FluxDisableGuidance(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FluxDisableGuidance",
            category="model/conditioning/flux",
            description="Takes the guidance of FLUX models away.",
            inputs=[io.Conditioning.Input("conditioning", tooltip="Conditioning to change.")],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, conditioning: list) -> io.NodeOutput:
        return io.NodeOutput(conditioning_set_values(conditioning, {"guidance": None}))


class FluxKontextMultiReferenceLatentMethod(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FluxKontextMultiReferenceLatentMethod",
            display_name="Edit Model Reference Method",
            category="model/conditioning/flux",
            description="Chooses how several reference pictures are placed before the model.",
            is_experimental=True,
            inputs=[
                io.Conditioning.Input("conditioning", tooltip="Conditioning to change."),
                io.Combo.Input(
                    "reference_latents_method",
                    options=["offset", "index", "uxo/uno", "index_timestep_zero"],
                    tooltip="How they are told apart.",
                    advanced=True,
                ),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, conditioning: list, reference_latents_method: str) -> io.NodeOutput:
        # The two names of the interface are one method.
        method = "uxo" if "uxo" in reference_latents_method else reference_latents_method
        return io.NodeOutput(conditioning_set_values(conditioning, {"reference_latents_method": method}))


class ReferenceLatent(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ReferenceLatent",
            display_name="Set Reference Latent",
            category="model/conditioning",
            description="Adds a picture, as latents, for editing models to look at.",
            inputs=[
                io.Conditioning.Input("conditioning", tooltip="Conditioning to extend."),
                io.Latent.Input("latent", tooltip="The picture.", optional=True),
            ],
            outputs=[io.Conditioning.Output()],
        )

    @classmethod
    def execute(cls, conditioning: list, latent: dict | None = None) -> io.NodeOutput:
        if latent is None:
            return io.NodeOutput(conditioning)
        values = {"reference_latents": [latent["samples"]]}
        return io.NodeOutput(conditioning_set_values(conditioning, values, append=True))


# Sizes FLUX Kontext was trained on: width, height.
_KONTEXT_SIZES = [
    (672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104),
    (1024, 1024),
    (1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688), (1568, 672),
]  # fmt: skip


class FluxKontextImageScale(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FluxKontextImageScale",
            category="model/conditioning/flux",
            description="Resizes an image to the size nearest to what FLUX Kontext was trained on.",
            inputs=[io.Image.Input("image", tooltip="Image to resize.")],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor) -> io.NodeOutput:
        ratio = image.shape[2] / image.shape[1]
        width, height = min(_KONTEXT_SIZES, key=lambda size: abs(ratio - size[0] / size[1]))
        return io.NodeOutput(scale_image(image, "lanczos", width, height, "center"))


NODES = {
    "comfy_extras.nodes_flux": [
        FluxGuidance,
        FluxDisableGuidance,
        FluxKontextMultiReferenceLatentMethod,
        FluxKontextImageScale,
    ],
    "comfy_extras.nodes_edit_model": [ReferenceLatent],
}
