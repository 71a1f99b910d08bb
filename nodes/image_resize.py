"""Nodes that resize images by various rules."""

from __future__ import annotations

from typing import Any

import torch

import comfy.utils
from comfy_api.latest import io

from .constants import CROP_MODES, IMAGE_SCALE_METHODS, MAX_RESOLUTION
from .images import scale_image

# A megapixel of the interface: 1024 x 1024.
PIXELS_PER_MEGAPIXEL = 1024 * 1024


class ImageScaleToTotalPixels(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageScaleToTotalPixels",
            display_name="Scale Image to Total Pixels",
            category="image/upscaling",
            description="Resizes an image to a number of pixels, keeping its aspect ratio.",
            inputs=[
                io.Image.Input("image", tooltip="Image to resize."),
                io.Combo.Input("upscale_method", options=IMAGE_SCALE_METHODS, tooltip="How new pixels are computed."),
                io.Float.Input(
                    "megapixels",
                    tooltip="Size of the result, in units of 1024 x 1024 pixels.",
                    default=1.0,
                    min=0.01,
                    max=16.0,
                    step=0.01,
                ),
                io.Int.Input(
                    "resolution_steps",
                    tooltip="Both sides become a multiple of this.",
                    advanced=True,
                    default=1,
                    min=1,
                    max=256,
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(
        cls, image: torch.Tensor, upscale_method: str, megapixels: float, resolution_steps: int
    ) -> io.NodeOutput:
        height, width = image.shape[1:3]
        factor = (megapixels * PIXELS_PER_MEGAPIXEL / (width * height)) ** 0.5
        width, height = (round(side * factor / resolution_steps) * resolution_steps for side in (width, height))
        check_size(width, height)
        return io.NodeOutput(scale_image(image, upscale_method, width, height, "disabled"))


def check_size(width: int, height: int) -> None:
    """Raises ValueError when a side has become zero."""
    if width < 1 or height < 1:
        raise ValueError(f"the image would become {width} x {height} pixels")


class ImageScaleToMaxDimension(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageScaleToMaxDimension",
            display_name="Scale Image to Max Dimension",
            category="image/upscaling",
            description="Resizes an image so that its longer side gets a given length.",
            inputs=[
                io.Image.Input("image", tooltip="Image to resize."),
                io.Combo.Input(
                    "upscale_method",
                    options=["area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"],
                    tooltip="How new pixels are computed.",
                ),
                io.Int.Input(
                    "largest_size",
                    tooltip="Length of the longer side in pixels.",
                    default=512,
                    min=0,
                    max=MAX_RESOLUTION,
                    step=1,
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, upscale_method: str, largest_size: int) -> io.NodeOutput:
        height, width = image.shape[1:3]
        width, height = _with_longer_side(width, height, largest_size)
        check_size(width, height)
        return io.NodeOutput(scale_image(image, upscale_method, width, height, "disabled"))


def _with_longer_side(width: int, height: int, size: int) -> tuple[int, int]:
    if height > width:
        return round((width / height) * size), size
    if width > height:
        return size, round((height / width) * size)
    return size, size


def _with_shorter_side(width: int, height: int, size: int) -> tuple[int, int]:
    if height < width:
        return round((width / height) * size), size
    if width < height:
        return size, round((height / width) * size)
    return size, size


class ResizeAndPadImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ResizeAndPadImage",
            display_name="Resize And Pad Image",
            category="image/transform",
            description="Resizes an image to fit into a size, and fills the rest with a border.",
            inputs=[
                io.Image.Input("image", tooltip="Image to resize."),
                io.Int.Input(
                    "target_width", tooltip="Width in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1
                ),
                io.Int.Input(
                    "target_height", tooltip="Height in pixels.", default=512, min=1, max=MAX_RESOLUTION, step=1
                ),
                io.Combo.Input(
                    "padding_color", options=["white", "black"], tooltip="Colour of the border.", advanced=True
                ),
                io.Combo.Input(
                    "interpolation",
                    options=["area", "bicubic", "nearest-exact", "bilinear", "lanczos"],
                    tooltip="How new pixels are computed.",
                    advanced=True,
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(
        cls,
        image: torch.Tensor,
        target_width: int,
        target_height: int,
        padding_color: str,
        interpolation: str,
    ) -> io.NodeOutput:
        height, width = image.shape[1:3]
        factor = min(target_width / width, target_height / height)
        width, height = int(width * factor), int(height * factor)
        fill = 1.0 if padding_color == "white" else 0.0
        canvas = torch.full((image.shape[0], target_height, target_width, image.shape[-1]), fill).to(image)
        if min(width, height) < 1 and interpolation == "area":
            # Nothing is left of the image; averaging over nothing has always given an empty canvas.
            return io.NodeOutput(canvas)
        check_size(width, height)
        left, top = (target_width - width) // 2, (target_height - height) // 2
        canvas[:, top : top + height, left : left + width] = scale_image(
            image, interpolation, width, height, "disabled"
        )
        return io.NodeOutput(canvas)


class ResizeImageMaskNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("input_type", [io.Image, io.Mask])
        return io.Schema(
            node_id="ResizeImageMaskNode",
            display_name="Resize Image/Mask",
            category="image/transform",
            description="Resizes an image or a mask by one of several rules.",
            search_aliases=["scale", "fit", "resolution"],
            inputs=[
                io.MatchType.Input("input", template=template, tooltip="Image or mask to resize."),
                io.DynamicCombo.Input(
                    "resize_type",
                    options=[
                        io.DynamicCombo.Option(
                            "scale dimensions",
                            [
                                io.Int.Input(
                                    "width",
                                    tooltip="Width in pixels; 0 follows from the height.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                ),
                                io.Int.Input(
                                    "height",
                                    tooltip="Height in pixels; 0 follows from the width.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                ),
                                io.Combo.Input(
                                    "crop",
                                    options=CROP_MODES,
                                    tooltip="Whether to cut to the new aspect ratio first.",
                                    default="center",
                                ),
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale by multiplier",
                            [
                                io.Float.Input(
                                    "multiplier",
                                    tooltip="Factor for both sides.",
                                    default=1.0,
                                    min=0.01,
                                    max=8.0,
                                    step=0.01,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale longer dimension",
                            [
                                io.Int.Input(
                                    "longer_size",
                                    tooltip="Length of the longer side in pixels.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale shorter dimension",
                            [
                                io.Int.Input(
                                    "shorter_size",
                                    tooltip="Length of the shorter side in pixels.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale width",
                            [
                                io.Int.Input(
                                    "width",
                                    tooltip="Width in pixels; 0 follows from the height.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale height",
                            [
                                io.Int.Input(
                                    "height",
                                    tooltip="Height in pixels; 0 follows from the width.",
                                    default=512,
                                    min=0,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale total pixels",
                            [
                                io.Float.Input(
                                    "megapixels",
                                    tooltip="Size of the result, in units of 1024 x 1024 pixels.",
                                    default=1.0,
                                    min=0.01,
                                    max=16.0,
                                    step=0.01,
                                )
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "match size",
                            [
                                io.MultiType.Input(
                                    "match", types=[io.Image, io.Mask], tooltip="Image or mask whose size to take."
                                ),
                                io.Combo.Input(
                                    "crop",
                                    options=CROP_MODES,
                                    tooltip="Whether to cut to the new aspect ratio first.",
                                    default="center",
                                ),
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "scale to multiple",
                            [
                                io.Int.Input(
                                    "multiple",
                                    tooltip="Both sides become a multiple of this; the rest is cut off.",
                                    default=8,
                                    min=1,
                                    max=MAX_RESOLUTION,
                                    step=1,
                                )
                            ],
                        ),
                    ],
                    tooltip="Rule for the new size.",
                ),
                io.Combo.Input(
                    "scale_method", options=IMAGE_SCALE_METHODS, tooltip="How new pixels are computed.", default="area"
                ),
            ],
            outputs=[io.MatchType.Output(template=template, display_name="resized")],
        )

    @classmethod
    def execute(cls, input: torch.Tensor, scale_method: str, resize_type: dict[str, Any]) -> io.NodeOutput:
        is_mask = input.ndim == 3
        # Channels last, so that one function serves both.
        image = input[..., None] if is_mask else input
        result = _RULES[resize_type["resize_type"]](image, scale_method, resize_type)
        return io.NodeOutput(result[..., 0] if is_mask else result)


def _scale(image: torch.Tensor, method: str, width: int, height: int, crop: str = "disabled") -> torch.Tensor:
    check_size(width, height)
    if method == "lanczos" and image.shape[-1] == 1:
        # The Lanczos of `common_upscale` gives masks back without their channel.
        resized = comfy.utils.common_upscale(image.movedim(-1, 1), width, height, method, crop)
        return resized.reshape(image.shape[0], height, width, 1)
    return scale_image(image, method, width, height, crop)


def _dimensions(image: torch.Tensor, method: str, rule: dict) -> torch.Tensor:
    rows, columns = image.shape[1:3]
    width, height = rule["width"], rule["height"]
    if width == 0 and height == 0:
        return image
    width = width or max(1, round(columns * height / rows))
    height = height or max(1, round(rows * width / columns))
    return _scale(image, method, width, height, rule["crop"])


def _multiplier(image: torch.Tensor, method: str, rule: dict) -> torch.Tensor:
    factor = rule["multiplier"]
    return _scale(image, method, round(image.shape[2] * factor), round(image.shape[1] * factor))


def _total_pixels(image: torch.Tensor, method: str, rule: dict) -> torch.Tensor:
    height, width = image.shape[1:3]
    factor = (int(rule["megapixels"] * PIXELS_PER_MEGAPIXEL) / (width * height)) ** 0.5
    return _scale(image, method, round(width * factor), round(height * factor))


def _match(image: torch.Tensor, method: str, rule: dict) -> torch.Tensor:
    pattern = rule["match"]
    height, width = pattern.shape[1:3]
    if image.shape[1:3] == (height, width):
        return image
    return _scale(image, method, width, height, rule["crop"])


def _multiple(image: torch.Tensor, method: str, rule: dict) -> torch.Tensor:
    """Scale to cover the largest multiples that fit, then cut the centre out."""
    multiple = rule["multiple"]
    height, width = image.shape[1:3]
    new_width, new_height = width // multiple * multiple, height // multiple * multiple
    if multiple <= 1 or not new_width or not new_height or (new_width, new_height) == (width, height):
        return image
    factor = max(new_width / width, new_height / height)
    if new_width / width >= new_height / height:
        covered = new_width, max(new_height, -int(-height * factor // 1))
    else:
        covered = max(new_width, -int(-width * factor // 1)), new_height
    image = _scale(image, method, *covered)
    x, y = (covered[0] - new_width) // 2, (covered[1] - new_height) // 2
    return image[:, y : y + new_height, x : x + new_width]


_RULES = {
    "scale dimensions": _dimensions,
    "scale by multiplier": _multiplier,
    "scale longer dimension": lambda image, method, rule: _scale(
        image, method, *_with_longer_side(image.shape[2], image.shape[1], rule["longer_size"])
    ),
    "scale shorter dimension": lambda image, method, rule: _scale(
        image, method, *_with_shorter_side(image.shape[2], image.shape[1], rule["shorter_size"])
    ),
    "scale width": lambda image, method, rule: _dimensions(
        image, method, {"width": rule["width"], "height": 0, "crop": "disabled"}
    ),
    "scale height": lambda image, method, rule: _dimensions(
        image, method, {"width": 0, "height": rule["height"], "crop": "disabled"}
    ),
    "scale total pixels": _total_pixels,
    "match size": _match,
    "scale to multiple": _multiple,
}


class ResolutionSelector(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ResolutionSelector",
            display_name="Resolution Selector",
            category="utilities",
            description="Width and height for an aspect ratio and a number of pixels.",
            search_aliases=["aspect ratio", "size", "megapixels"],
            inputs=[
                io.Combo.Input(
                    "aspect_ratio",
                    options=[
                        "1:1 (Square)",
                        "2:3 (Portrait Photo)",
                        "3:2 (Photo)",
                        "3:4 (Portrait Standard)",
                        "4:3 (Standard)",
                        "9:16 (Portrait Widescreen)",
                        "16:9 (Widescreen)",
                        "21:9 (Ultrawide)",
                    ],
                    tooltip="Width to height.",
                    default="1:1 (Square)",
                ),
                io.Float.Input(
                    "megapixels",
                    tooltip="Size in units of 1024 x 1024 pixels.",
                    default=1.0,
                    min=0.1,
                    max=16.0,
                    step=0.1,
                ),
                io.Int.Input(
                    "multiple",
                    tooltip="Both sides become a multiple of this.",
                    advanced=True,
                    default=8,
                    min=8,
                    max=128,
                    step=4,
                ),
            ],
            outputs=[io.Int.Output(display_name="width"), io.Int.Output(display_name="height")],
        )

    @classmethod
    def execute(cls, aspect_ratio: str, megapixels: float, multiple: int) -> io.NodeOutput:
        wide, high = (int(part) for part in aspect_ratio.split(" ")[0].split(":"))
        unit = (megapixels * PIXELS_PER_MEGAPIXEL / (wide * high)) ** 0.5
        return io.NodeOutput(*(round(part * unit / multiple) * multiple for part in (wide, high)))


NODES = {
    "comfy_extras.nodes_post_processing": [ImageScaleToTotalPixels, ResizeImageMaskNode],
    "comfy_extras.nodes_images": [ImageScaleToMaxDimension, ResizeAndPadImage],
    "comfy_extras.nodes_resolution": [ResolutionSelector],
}
