"""Nodes that cut, turn, join and measure images."""

from __future__ import annotations

import torch

from comfy_api.latest import io, ui

from .constants import MAX_RESOLUTION
from .images import match_channels, on_one_device, scale_image


def crop_rectangle(image: torch.Tensor, x: int, y: int, width: int, height: int) -> torch.Tensor:
    """The part of [B,H,W,C] at (x, y). A corner outside is moved to the edge, and the rest ends at the border."""
    x, y = min(x, image.shape[2] - 1), min(y, image.shape[1] - 1)
    return image[:, y : y + height, x : x + width]


class GetImageSize(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="GetImageSize",
            display_name="Get Image Size",
            category="image",
            description="Tells the size of an image.",
            search_aliases=["dimensions", "width", "height"],
            inputs=[io.Image.Input("image", tooltip="Image to measure.")],
            outputs=[
                io.Int.Output(display_name="width", tooltip="Width in pixels."),
                io.Int.Output(display_name="height", tooltip="Height in pixels."),
                io.Int.Output(display_name="batch_size", tooltip="Number of images in the batch."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, image: torch.Tensor) -> io.NodeOutput:
        batch, height, width = image.shape[:3]
        if cls.hidden.unique_id:
            from server import PromptServer

            server = getattr(PromptServer, "instance", None)
            if server is not None:
                server.send_progress_text(
                    f"width: {width}, height: {height}\n batch size: {batch}", cls.hidden.unique_id
                )
        return io.NodeOutput(width, height, batch)


class ImageCrop(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageCrop",
            display_name="Crop Image (DEPRECATED)",
            category="image/transform",
            description="Cuts a rectangle out of an image.",
            is_deprecated=True,
            essentials_category="Image Tools",
            inputs=[
                io.Image.Input("image", tooltip="Image to cut."),
                io.Int.Input("width", tooltip="Width in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
                io.Int.Input("height", tooltip="Height in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1),
                io.Int.Input("x", tooltip="Left edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
                io.Int.Input("y", tooltip="Top edge in pixels.", default=0, min=0, max=MAX_RESOLUTION, step=1),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, width: int, height: int, x: int, y: int) -> io.NodeOutput:
        return io.NodeOutput(crop_rectangle(image, x, y, width, height))


class ImageCropV2(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageCropV2",
            display_name="Crop Image",
            category="image/transform",
            description="Cuts a rectangle, drawn in the browser, out of an image.",
            has_intermediate_output=True,
            essentials_category="Image Tools",
            inputs=[
                io.Image.Input("image", tooltip="Image to cut."),
                io.BoundingBox.Input(
                    "crop_region",
                    tooltip="Rectangle in pixels.",
                    default={"x": 0, "y": 0, "width": 512, "height": 512},
                    socketless=True,
                    component="ImageCrop",
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, crop_region: dict) -> io.NodeOutput:
        region = {"x": 0, "y": 0, "width": 512, "height": 512, **crop_region}
        x, y, width, height = (int(region[key]) for key in ("x", "y", "width", "height"))
        if min(x, y) < 0 or min(width, height) < 1:
            raise ValueError(f"crop_region {crop_region} is not a rectangle inside an image")
        piece = crop_rectangle(image, x, y, width, height)
        return io.NodeOutput(piece, ui=ui.PreviewImage(piece))


class PrimitiveBoundingBox(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveBoundingBox",
            display_name="Bounding Box",
            category="utilities/primitive",
            description="A rectangle.",
            inputs=[
                io.Int.Input("x", tooltip="Left edge in pixels.", default=0, min=0, max=MAX_RESOLUTION),
                io.Int.Input("y", tooltip="Top edge in pixels.", default=0, min=0, max=MAX_RESOLUTION),
                io.Int.Input("width", tooltip="Width in pixels.", default=512, min=1, max=MAX_RESOLUTION),
                io.Int.Input("height", tooltip="Height in pixels.", default=512, min=1, max=MAX_RESOLUTION),
            ],
            outputs=[io.BoundingBox.Output()],
        )

    @classmethod
    def execute(cls, x: int, y: int, width: int, height: int) -> io.NodeOutput:
        return io.NodeOutput({"x": x, "y": y, "width": width, "height": height})


class ImageRotate(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageRotate",
            display_name="Rotate Image",
            category="image/transform",
            description="Turns an image clockwise.",
            essentials_category="Image Tools",
            inputs=[
                io.Image.Input("image", tooltip="Image to turn."),
                io.Combo.Input(
                    "rotation", options=["none", "90 degrees", "180 degrees", "270 degrees"], tooltip="Angle."
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, rotation: str) -> io.NodeOutput:
        turns = ("none", "90 degrees", "180 degrees", "270 degrees").index(rotation)
        # torch turns anticlockwise for positive counts.
        return io.NodeOutput(torch.rot90(image, k=-turns, dims=(1, 2)))


class ImageFlip(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageFlip",
            display_name="Flip Image",
            category="image/transform",
            description="Mirrors an image.",
            inputs=[
                io.Image.Input("image", tooltip="Image to mirror."),
                io.Combo.Input(
                    "flip_method", options=["x-axis: vertically", "y-axis: horizontally"], tooltip="Axis to mirror at."
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, flip_method: str) -> io.NodeOutput:
        return io.NodeOutput(torch.flip(image, dims=[1 if flip_method.startswith("x") else 2]))


class ImageStitch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageStitch",
            display_name="Stitch Images",
            category="image/transform",
            description="Puts two images beside or above each other.",
            search_aliases=["join", "concat", "side by side"],
            inputs=[
                io.Image.Input("image1", tooltip="First image."),
                io.Combo.Input(
                    "direction",
                    options=["right", "down", "left", "up"],
                    tooltip="Where the second image goes.",
                    default="right",
                ),
                io.Boolean.Input(
                    "match_image_size",
                    tooltip=(
                        "Whether to resize the second image to the first; otherwise the smaller one gets a border."
                    ),
                    default=True,
                ),
                io.Int.Input(
                    "spacing_width",
                    tooltip="Gap between them in pixels.",
                    advanced=True,
                    default=0,
                    min=0,
                    max=1024,
                    step=2,
                ),
                io.Combo.Input(
                    "spacing_color",
                    options=["white", "black", "red", "green", "blue"],
                    tooltip="Colour of gap and border.",
                    advanced=True,
                    default="white",
                ),
                io.Image.Input("image2", tooltip="Second image.", optional=True),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(
        cls,
        image1: torch.Tensor,
        direction: str,
        match_image_size: bool,
        spacing_width: int,
        spacing_color: str,
        image2: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        if image2 is None:
            return io.NodeOutput(image1)
        sideways = direction in ("left", "right")
        batch = max(image1.shape[0], image2.shape[0])
        pair = [_repeat_last(image, batch) for image in on_one_device((image1, image2))]
        if match_image_size:
            pair[1] = _match_side(pair[1], pair[0], sideways)
        else:
            # Borders are white or black; the coloured gaps go with black ones.
            border = 1.0 if spacing_color == "white" else 0.0
            length = max(image.shape[1 if sideways else 2] for image in pair)
            pair = [_centre(image, length, sideways, border) for image in pair]
        channels = max(image.shape[-1] for image in pair)
        pair = [match_channels(image, channels) for image in pair]
        if direction in ("left", "up"):
            pair.reverse()
        if spacing_width > 0:
            pair.insert(1, _gap(pair[0], spacing_width + spacing_width % 2, sideways, spacing_color))
        return io.NodeOutput(torch.cat(pair, dim=2 if sideways else 1))


def _repeat_last(image: torch.Tensor, batch: int) -> torch.Tensor:
    """Fill a batch up with copies of its last image."""
    missing = batch - image.shape[0]
    return torch.cat((image, image[-1:].repeat(missing, 1, 1, 1))) if missing else image


def _match_side(image: torch.Tensor, other: torch.Tensor, sideways: bool) -> torch.Tensor:
    """Resize so that the sides that will touch are equally long."""
    height, width = image.shape[1:3]
    if sideways:
        size = int(other.shape[1] * (width / height)), other.shape[1]
    else:
        size = other.shape[2], int(other.shape[2] / (width / height))
    return scale_image(image, "lanczos", *size, "disabled")


def _centre(image: torch.Tensor, length: int, sideways: bool, border: float) -> torch.Tensor:
    """Pad the side that will touch to `length`, evenly on both ends."""
    missing = length - image.shape[1 if sideways else 2]
    before = missing // 2
    pad = (0, 0, before, missing - before)
    if sideways:
        pad = (0, 0, 0, 0, before, missing - before)
    return torch.nn.functional.pad(image, pad, value=border)


_GAP_COLOURS = {
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
}


def _gap(like: torch.Tensor, size: int, sideways: bool, colour: str) -> torch.Tensor:
    batch, height, width, channels = like.shape
    shape = (batch, height, size) if sideways else (batch, size, width)
    values = torch.tensor([*_GAP_COLOURS[colour], 1.0][:channels]).to(like)
    return values.expand(*shape, channels)


NODES = {
    "comfy_extras.nodes_images": [
        GetImageSize,
        ImageCrop,
        ImageCropV2,
        PrimitiveBoundingBox,
        ImageRotate,
        ImageFlip,
        ImageStitch,
    ],
}
