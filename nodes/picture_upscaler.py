"""The node that shows Stable Diffusion's x4 upscaler the picture to enlarge."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from node_helpers import conditioning_set_values

# Pixels per latent cell of this model's autoencoder.
CELL = 4


class SD_4XUpscale_Conditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SD_4XUpscale_Conditioning",
            category="model/conditioning/stable diffusion upscaler",
            description="Shows Stable Diffusion's x4 upscaler the picture to enlarge.",
            inputs=[
                io.Image.Input("images", tooltip="Pictures to enlarge."),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Float.Input("scale_ratio", default=4.0, min=0.0, max=10.0, step=0.01, tooltip="How much larger."),
                io.Float.Input(
                    "noise_augmentation",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.001,
                    advanced=True,
                    tooltip="Noise put into the picture, so that more is made up.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive"),
                io.Conditioning.Output(display_name="negative"),
                io.Latent.Output(display_name="latent"),
            ],
        )

    @classmethod
    def execute(
        cls, images: Any, positive: list, negative: list, scale_ratio: float, noise_augmentation: float
    ) -> io.NodeOutput:
        import torch

        import comfy.utils

        height, width = (max(1, round(n * scale_ratio)) // CELL for n in images.shape[1:3])
        height, width = max(1, height), max(1, width)
        pixels = images[..., :3].movedim(-1, 1) * 2.0 - 1.0
        pixels = comfy.utils.common_upscale(pixels, width, height, "bilinear", "center")
        values = {"concat_image": pixels, "noise_augmentation": noise_augmentation}
        latent = torch.zeros(images.shape[0], 4, height, width)
        return io.NodeOutput(
            conditioning_set_values(positive, values),
            conditioning_set_values(negative, values),
            {"samples": latent, "downscale_ratio_spacial": CELL},
        )


NODES = {"comfy_extras.nodes_sdupscale": [SD_4XUpscale_Conditioning]}
