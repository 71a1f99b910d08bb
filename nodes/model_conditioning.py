"""Nodes that set options on conditioning which only some models read."""

from __future__ import annotations

from typing import Any

import torch

from comfy_api.latest import io
from node_helpers import conditioning_set_values

from .images import scale_image
from .vae import check_vae, crop_to_blocks


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


class LTXVConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LTXVConditioning",
            category="model/conditioning/ltxv",
            description="Tells LTX-Video the frame rate.",
            inputs=[
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Float.Input(
                    "frame_rate", tooltip="Frames per second.", default=25.0, min=0.0, max=1000.0, step=0.01
                ),
            ],
            outputs=[io.Conditioning.Output(display_name="positive"), io.Conditioning.Output(display_name="negative")],
        )

    @classmethod
    def execute(cls, positive: list, negative: list, frame_rate: float) -> io.NodeOutput:
        values = {"frame_rate": frame_rate}
        return io.NodeOutput(conditioning_set_values(positive, values), conditioning_set_values(negative, values))


class InstructPixToPixConditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="InstructPixToPixConditioning",
            category="model/conditioning/instructpix2pix",
            description="Shows editing models such as InstructPix2Pix the picture to edit.",
            inputs=[
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Vae.Input("vae", tooltip="VAE of the model."),
                io.Image.Input("pixels", tooltip="Picture to edit."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive"),
                io.Conditioning.Output(display_name="negative"),
                io.Latent.Output(display_name="latent"),
            ],
        )

    @classmethod
    def execute(cls, positive: list, negative: list, pixels: torch.Tensor, vae: Any) -> io.NodeOutput:
        check_vae(vae)
        picture = vae.encode(crop_to_blocks(pixels, 8)[0])
        values = {"concat_latent_image": picture}
        return io.NodeOutput(
            conditioning_set_values(positive, values),
            conditioning_set_values(negative, values),
            {"samples": torch.zeros_like(picture)},
        )


class ConditioningSetAreaPercentageVideo:
    DESCRIPTION = "Lets a conditioning act on a box in space and time, given as parts of the video."
    DISPLAY_NAME = "Conditioning (Set Area with Percentage for Video)"
    CATEGORY = "model/conditioning/transform"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "append"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to limit."}),
                "width": (
                    "FLOAT",
                    {"default": 1.0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Width; 1 is the whole picture."},
                ),
                "height": (
                    "FLOAT",
                    {"default": 1.0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Height; 1 is the whole picture."},
                ),
                "temporal": (
                    "FLOAT",
                    {"default": 1.0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Length; 1 is the whole video."},
                ),
                "x": (
                    "FLOAT",
                    {"default": 0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Left edge; 0 is the left side."},
                ),
                "y": (
                    "FLOAT",
                    {"default": 0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Top edge; 0 is the top."},
                ),
                "z": (
                    "FLOAT",
                    {"default": 0, "min": 0, "max": 1.0, "step": 0.01, "tooltip": "Begin; 0 is the first frame."},
                ),
                "strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 10.0,
                        "step": 0.01,
                        "tooltip": "Weight against other conditionings that act there.",
                    },
                ),
            }
        }

    def append(
        self,
        conditioning: list,
        width: float,
        height: float,
        temporal: float,
        x: float,
        y: float,
        z: float,
        strength: float,
    ) -> tuple[list]:
        values = {
            "area": ("percentage", temporal, height, width, z, y, x),
            "strength": strength,
            "set_area_to_bounds": False,
        }
        return (conditioning_set_values(conditioning, values),)


NODES = {
    "comfy_extras.nodes_flux": [
        FluxGuidance,
        FluxDisableGuidance,
        FluxKontextMultiReferenceLatentMethod,
        FluxKontextImageScale,
    ],
    "comfy_extras.nodes_edit_model": [ReferenceLatent],
    "comfy_extras.nodes_lt": [LTXVConditioning],
    "comfy_extras.nodes_ip2p": [InstructPixToPixConditioning],
    "comfy_extras.nodes_video_model": [ConditioningSetAreaPercentageVideo],
}
