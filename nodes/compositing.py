"""Nodes for transparency: splitting, joining, and Porter-Duff compositing."""

from __future__ import annotations

import torch

import comfy.utils
from comfy_api.latest import io

from .images import on_one_device, scale_image


class SplitImageWithAlpha(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SplitImageWithAlpha",
            display_name="Split Image with Alpha",
            category="image/compositing",
            description="Takes the transparency out of an image, as a mask.",
            inputs=[io.Image.Input("image", tooltip="Image to split.")],
            outputs=[
                io.Image.Output(tooltip="The colours."),
                io.Mask.Output(tooltip="1 where the image is transparent."),
            ],
        )

    @classmethod
    def execute(cls, image: torch.Tensor) -> io.NodeOutput:
        alpha = image[..., 3] if image.shape[-1] > 3 else torch.ones_like(image[..., 0])
        return io.NodeOutput(image[..., :3], 1.0 - alpha)


class JoinImageWithAlpha(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="JoinImageWithAlpha",
            display_name="Join Image with Alpha",
            category="image/compositing",
            description="Makes the masked part of an image transparent.",
            inputs=[
                io.Image.Input("image", tooltip="Image to change."),
                io.Mask.Input("alpha", tooltip="1 where it shall be transparent."),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, alpha: torch.Tensor) -> io.NodeOutput:
        batch = max(image.shape[0], alpha.shape[0])
        image = comfy.utils.repeat_to_batch_size(image, batch)
        mask = torch.nn.functional.interpolate(
            alpha.reshape((-1, 1, *alpha.shape[-2:])), size=tuple(image.shape[1:3]), mode="bilinear"
        )
        opacity = 1.0 - comfy.utils.repeat_to_batch_size(mask.movedim(1, -1), batch)
        return io.NodeOutput(torch.cat((image[..., :3], opacity.to(image)), dim=-1))


class PorterDuffImageComposite(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PorterDuffImageComposite",
            display_name="Porter-Duff Image Composite",
            category="image/compositing",
            description="Combines two images with masks by the rules of Porter and Duff (1984).",
            search_aliases=["blend", "overlay", "alpha"],
            inputs=[
                io.Image.Input("source", tooltip="Image on top."),
                io.Mask.Input("source_alpha", tooltip="1 where it is transparent."),
                io.Image.Input("destination", tooltip="Image below."),
                io.Mask.Input("destination_alpha", tooltip="1 where it is transparent."),
                io.Combo.Input(
                    "mode",
                    options=[
                        "ADD",
                        "CLEAR",
                        "DARKEN",
                        "DST",
                        "DST_ATOP",
                        "DST_IN",
                        "DST_OUT",
                        "DST_OVER",
                        "LIGHTEN",
                        "MULTIPLY",
                        "OVERLAY",
                        "SCREEN",
                        "SRC",
                        "SRC_ATOP",
                        "SRC_IN",
                        "SRC_OUT",
                        "SRC_OVER",
                        "XOR",
                    ],
                    tooltip="Rule.",
                    default="DST",
                ),
            ],
            outputs=[io.Image.Output(), io.Mask.Output()],
        )

    @classmethod
    def execute(
        cls,
        source: torch.Tensor,
        source_alpha: torch.Tensor,
        destination: torch.Tensor,
        destination_alpha: torch.Tensor,
        mode: str,
    ) -> io.NodeOutput:
        height, width = destination.shape[1:3]
        planes = on_one_device([source, source_alpha[..., None], destination, destination_alpha[..., None]])
        batch = min(plane.shape[0] for plane in planes)
        planes = [
            plane[:batch]
            if plane.shape[1:3] == (height, width)
            else scale_image(plane[:batch], "bicubic", width, height, "center")
            for plane in planes
        ]
        colour, mask, under_colour, under_mask = planes
        result, opacity = porter_duff(colour, 1.0 - mask, under_colour, 1.0 - under_mask, mode)
        return io.NodeOutput(result, 1.0 - opacity.squeeze(-1))


def porter_duff(
    source: torch.Tensor, a: torch.Tensor, destination: torch.Tensor, b: torch.Tensor, mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(colour, opacity) of a composition.

    source, destination: [B,H,W,3]; a, b: their opacity [B,H,W,1]. All of 0..1. Colours are multiplied by their opacity
    on the way in and divided by the new one on the way out.
    """
    source, destination = source * a, destination * b
    colour, opacity = _RULES[mode](source, a, destination, b)
    visible = opacity > 1e-5
    colour = torch.where(visible, colour / opacity.clamp(min=1e-5), torch.zeros_like(colour))
    return colour.clamp(0, 1), opacity


def _union(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Opacity of two independent layers."""
    return a + b - a * b


def _outside(s: torch.Tensor, a: torch.Tensor, d: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What each layer shows where the other one is transparent."""
    return (1 - b) * s + (1 - a) * d


# Premultiplied colours s, d and opacities a, b -> (premultiplied colour, opacity).
_RULES = {
    "ADD": lambda s, a, d, b: ((s + d).clamp(0, 1), (a + b).clamp(0, 1)),
    "CLEAR": lambda s, a, d, b: (torch.zeros_like(d), torch.zeros_like(b)),
    "DARKEN": lambda s, a, d, b: (_outside(s, a, d, b) + torch.minimum(s, d), _union(a, b)),
    "DST": lambda s, a, d, b: (d, b),
    "DST_ATOP": lambda s, a, d, b: (a * d + (1 - b) * s, a),
    "DST_IN": lambda s, a, d, b: (d * a, a * b),
    "DST_OUT": lambda s, a, d, b: ((1 - a) * d, (1 - a) * b),
    "DST_OVER": lambda s, a, d, b: (d + (1 - b) * s, b + (1 - b) * a),
    "LIGHTEN": lambda s, a, d, b: (_outside(s, a, d, b) + torch.maximum(s, d), _union(a, b)),
    "MULTIPLY": lambda s, a, d, b: (s * d, a * b),
    "OVERLAY": lambda s, a, d, b: (
        torch.where(2 * d < b, 2 * s * d, a * b - 2 * (b - s) * (a - d)),
        _union(a, b),
    ),
    "SCREEN": lambda s, a, d, b: (s + d - s * d, _union(a, b)),
    "SRC": lambda s, a, d, b: (s, a),
    "SRC_ATOP": lambda s, a, d, b: (b * s + (1 - a) * d, b),
    "SRC_IN": lambda s, a, d, b: (s * b, a * b),
    "SRC_OUT": lambda s, a, d, b: ((1 - b) * s, (1 - b) * a),
    "SRC_OVER": lambda s, a, d, b: (s + (1 - a) * d, a + (1 - a) * b),
    "XOR": lambda s, a, d, b: (_outside(s, a, d, b), (1 - b) * a + (1 - a) * b),
}


NODES = {
    "comfy_extras.nodes_compositing": [SplitImageWithAlpha, JoinImageWithAlpha, PorterDuffImageComposite],
}
