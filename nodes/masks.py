"""Nodes that make and combine masks. MASK: [B,H,W] float32; 1 is selected."""

from __future__ import annotations

import numpy as np
import torch

from comfy_api.latest import io, ui

from .constants import MAX_RESOLUTION
from .paste import composite


def as_batch(mask: torch.Tensor) -> torch.Tensor:
    """[H,W] or [...,H,W] -> [B,H,W]."""
    return mask.reshape((-1, *mask.shape[-2:]))


class SolidMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SolidMask",
            display_name="Create Solid Mask",
            category="image/mask",
            description="A mask with the same value everywhere.",
            inputs=[
                io.Float.Input("value", tooltip="Value of every pixel.", default=1.0, min=0.0, max=1.0, step=0.01),
                io.Int.Input("width", tooltip="Width in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
                io.Int.Input("height", tooltip="Height in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, value: float, width: int, height: int) -> io.NodeOutput:
        return io.NodeOutput(torch.full((1, height, width), value, dtype=torch.float32))


class InvertMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="InvertMask",
            display_name="Invert Mask",
            category="image/mask",
            description="Selects what was not selected.",
            inputs=[io.Mask.Input("mask", tooltip="Mask to invert.")],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor) -> io.NodeOutput:
        return io.NodeOutput(1.0 - mask)


class CropMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CropMask",
            display_name="Crop Mask",
            category="image/mask",
            description="Cuts a rectangle out of a mask.",
            inputs=[
                io.Mask.Input("mask", tooltip="Mask to cut."),
                io.Int.Input("x", tooltip="Left edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
                io.Int.Input("y", tooltip="Top edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
                io.Int.Input("width", tooltip="Width in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
                io.Int.Input("height", tooltip="Height in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor, x: int, y: int, width: int, height: int) -> io.NodeOutput:
        return io.NodeOutput(as_batch(mask)[:, y : y + height, x : x + width])


class MaskToImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MaskToImage",
            display_name="Convert Mask to Image",
            category="image/mask",
            description="Shows a mask as a grey image.",
            inputs=[io.Mask.Input("mask", tooltip="Mask to convert.")],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor) -> io.NodeOutput:
        return io.NodeOutput(as_batch(mask)[..., None].expand(-1, -1, -1, 3))


class ImageToMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageToMask",
            display_name="Convert Image to Mask",
            category="image/mask",
            description="Uses one channel of an image as a mask.",
            inputs=[
                io.Image.Input("image", tooltip="Image to take it from."),
                io.Combo.Input("channel", options=["red", "green", "blue", "alpha"], tooltip="Channel to use."),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, channel: str) -> io.NodeOutput:
        index = ("red", "green", "blue", "alpha").index(channel)
        if index >= image.shape[-1]:
            raise IndexError(f"the image has {image.shape[-1]} channels, and none is {channel}")
        return io.NodeOutput(image[..., index])


class ImageColorToMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageColorToMask",
            display_name="Convert Image Color to Mask",
            category="image/mask",
            description="Selects the pixels of exactly one colour.",
            inputs=[
                io.Image.Input("image", tooltip="Image to look at."),
                io.Int.Input(
                    "color",
                    tooltip="Colour as a number, 0xRRGGBB.",
                    display_mode=io.NumberDisplay.number,
                    default=0,
                    min=0,
                    max=16777215,
                    step=1,
                ),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, color: int) -> io.NodeOutput:
        red, green, blue = (image[..., :3].clamp(0, 1) * 255.0).round().to(torch.int).unbind(-1)
        found = (red << 16) + (green << 8) + blue
        return io.NodeOutput((found == color).float())


class ThresholdMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ThresholdMask",
            display_name="Threshold Mask",
            category="image/mask",
            description="Selects fully what is above a value, and nothing else.",
            inputs=[
                io.Mask.Input("mask", tooltip="Mask to decide on."),
                io.Float.Input(
                    "value", tooltip="Values above it become 1, all others 0.", default=0.5, min=0.0, max=1.0, step=0.01
                ),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor, value: float) -> io.NodeOutput:
        return io.NodeOutput((mask > value).float())


class MaskComposite(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MaskComposite",
            display_name="Combine Masks",
            category="image/mask",
            description="Combines a mask with a part of another one.",
            inputs=[
                io.Mask.Input("destination", tooltip="Mask to change."),
                io.Mask.Input("source", tooltip="Mask to combine it with."),
                io.Int.Input(
                    "x", tooltip="Left edge of the source in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "y", tooltip="Top edge of the source in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
                io.Combo.Input(
                    "operation",
                    options=["multiply", "add", "subtract", "and", "or", "xor"],
                    tooltip="How the values are combined.",
                ),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, destination: torch.Tensor, source: torch.Tensor, x: int, y: int, operation: str) -> io.NodeOutput:
        result = as_batch(destination).clone()
        source = as_batch(source).to(result.device)[:, : max(result.shape[1] - y, 0), : max(result.shape[2] - x, 0)]
        if source.numel():
            region = (slice(None), slice(y, y + source.shape[1]), slice(x, x + source.shape[2]))
            result[region] = _OPERATIONS[operation](result[region], source)
        return io.NodeOutput(result.clamp(0.0, 1.0))


def _logical(function):
    """A function of booleans, on masks rounded to 0 or 1."""
    return lambda a, b: function(a.round().bool(), b.round().bool()).float()


_OPERATIONS = {
    "multiply": torch.mul,
    "add": torch.add,
    "subtract": torch.sub,
    "and": _logical(torch.logical_and),
    "or": _logical(torch.logical_or),
    "xor": _logical(torch.logical_xor),
}


class FeatherMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="FeatherMask",
            display_name="Feather Mask",
            category="image/mask",
            description="Fades a mask out towards its edges.",
            inputs=[
                io.Mask.Input("mask", tooltip="Mask to fade."),
                io.Int.Input(
                    "left", tooltip="Width of the fade in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "top", tooltip="Height of the fade in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "right", tooltip="Width of the fade in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "bottom", tooltip="Height of the fade in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1
                ),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor, left: int, top: int, right: int, bottom: int) -> io.NodeOutput:
        result = as_batch(mask).clone()
        rows, columns = result.shape[1:]
        result *= (_ramp(columns, left) * _ramp(columns, right).flip(0))[None, None, :].to(result)
        result *= (_ramp(rows, top) * _ramp(rows, bottom).flip(0))[None, :, None].to(result)
        return io.NodeOutput(result)


def _ramp(size: int, length: int) -> torch.Tensor:
    """[size] ones that begin with 1/length, 2/length, …"""
    ramp = torch.ones(size)
    length = min(length, size)
    if length:
        ramp[:length] = torch.arange(1, length + 1) / length
    return ramp


class GrowMask(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="GrowMask",
            display_name="Grow Mask",
            category="image/mask",
            description="Makes the selected part larger, or smaller with a negative number.",
            search_aliases=["expand", "shrink", "dilate", "erode"],
            inputs=[
                io.Mask.Input("mask", tooltip="Mask to change."),
                io.Int.Input(
                    "expand", tooltip="By how many pixels.", default=0, min=-MAX_RESOLUTION, max=MAX_RESOLUTION, step=1
                ),
                io.Boolean.Input(
                    "tapered_corners", tooltip="Whether corners are cut instead of square.", advanced=True, default=True
                ),
            ],
            outputs=[io.Mask.Output()],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor, expand: int, tapered_corners: bool) -> io.NodeOutput:
        import scipy.ndimage

        corner = 0 if tapered_corners else 1
        kernel = np.array([[corner, 1, corner], [1, 1, 1], [corner, 1, corner]])
        step = scipy.ndimage.grey_erosion if expand < 0 else scipy.ndimage.grey_dilation
        grown = []
        for single in as_batch(mask):
            values = single.cpu().numpy()
            for _ in range(abs(expand)):
                values = step(values, footprint=kernel)
            grown.append(torch.from_numpy(values))
        return io.NodeOutput(torch.stack(grown).to(mask.device))


class MaskPreview(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="MaskPreview",
            display_name="Preview Mask",
            category="image/mask",
            description="Shows a mask; the file is temporary.",
            is_output_node=True,
            inputs=[io.Mask.Input("mask", tooltip="Mask to show.")],
            outputs=[io.Mask.Output(display_name="mask")],
        )

    @classmethod
    def execute(cls, mask: torch.Tensor) -> io.NodeOutput:
        return io.NodeOutput(mask, ui=ui.PreviewMask(mask))


class ImageCompositeMasked(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageCompositeMasked",
            display_name="Image Composite Masked",
            category="image/compositing",
            description="Pastes one image onto another, where the mask is set.",
            inputs=[
                io.Image.Input("destination", tooltip="Image to paste on."),
                io.Image.Input("source", tooltip="Image to paste."),
                io.Int.Input("x", tooltip="Left edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
                io.Int.Input("y", tooltip="Top edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
                io.Boolean.Input(
                    "resize_source", tooltip="Whether to give the source the destination's size first.", default=False
                ),
                io.Mask.Input("mask", tooltip="1 where the source shall appear.", optional=True),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(
        cls,
        destination: torch.Tensor,
        source: torch.Tensor,
        x: int,
        y: int,
        resize_source: bool,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        from node_helpers import image_alpha_fix

        destination, source = image_alpha_fix(destination, source)
        destination, source = destination.movedim(-1, 1), source.movedim(-1, 1)
        result = composite(destination, source, x, y, mask, 1, resize_source)
        return io.NodeOutput(result.movedim(1, -1))

    # The name packs know from before there were schemas.
    composite = execute


class LatentCompositeMasked(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentCompositeMasked",
            display_name="Latent Composite Masked",
            category="model/latent",
            description="Pastes one latent onto another, where the mask is set.",
            inputs=[
                io.Latent.Input("destination", tooltip="Latents to paste on."),
                io.Latent.Input("source", tooltip="Latents to paste."),
                io.Int.Input("x", tooltip="Left edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=8),
                io.Int.Input("y", tooltip="Top edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=8),
                io.Boolean.Input(
                    "resize_source", tooltip="Whether to give the source the destination's size first.", default=False
                ),
                io.Mask.Input("mask", tooltip="1 where the source shall appear.", optional=True),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(
        cls,
        destination: dict,
        source: dict,
        x: int,
        y: int,
        resize_source: bool,
        mask: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        samples = composite(destination["samples"], source["samples"], x, y, mask, 8, resize_source)
        return io.NodeOutput({**destination, "samples": samples})


NODES = {
    "comfy_extras.nodes_mask": [
        SolidMask,
        InvertMask,
        CropMask,
        MaskToImage,
        ImageToMask,
        ImageColorToMask,
        ThresholdMask,
        MaskComposite,
        FeatherMask,
        GrowMask,
        MaskPreview,
        ImageCompositeMasked,
        LatentCompositeMasked,
    ],
}
