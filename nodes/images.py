"""Core nodes that make and change images. IMAGE: [B,H,W,C] float32, 0..1."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .constants import CROP_MODES, IMAGE_SCALE_METHODS, MAX_RESOLUTION


def scale_image(image: torch.Tensor, method: str, width: int, height: int, crop: str) -> torch.Tensor:
    """Resize [B,H,W,C] to width x height pixels.

    A side given as 0 follows from the other one by the aspect ratio; both 0: the image itself.
    """
    if width == 0 and height == 0:
        return image
    rows, columns = image.shape[1:3]
    width = width or max(1, round(columns * height / rows))
    height = height or max(1, round(rows * width / columns))
    import comfy.utils

    return comfy.utils.common_upscale(image.movedim(-1, 1), width, height, method, crop).movedim(1, -1)


def match_channels(image: torch.Tensor, channels: int) -> torch.Tensor:
    """Add missing channels to [B,H,W,C], filled with 1 (an opaque alpha)."""
    missing = channels - image.shape[-1]
    return torch.nn.functional.pad(image, (0, missing), value=1.0) if missing > 0 else image


def on_one_device(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the device of the first: what comes from different nodes may be in different places."""
    first, *others = tensors
    return [first, *(other.to(first.device) for other in others)]


class EmptyImage:
    DESCRIPTION = "An image of one colour."
    DISPLAY_NAME = "Empty Image"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "generate"
    SEARCH_ALIASES = ["solid", "blank", "colour"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "width": (
                    "INT",
                    {"default": 512, "min": 1, "max": MAX_RESOLUTION, "step": 1, "tooltip": "Width in pixels."},
                ),
                "height": (
                    "INT",
                    {"default": 512, "min": 1, "max": MAX_RESOLUTION, "step": 1, "tooltip": "Height in pixels."},
                ),
                "batch_size": (
                    "INT",
                    {"default": 1, "min": 1, "max": 4096, "tooltip": "How many equal images to make."},
                ),
                "color": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 16777215,
                        "step": 1,
                        "display": "color",
                        "tooltip": "Colour as a number, 0xRRGGBB.",
                    },
                ),
            }
        }

    def generate(self, width: int, height: int, batch_size: int = 1, color: int = 0) -> tuple[torch.Tensor]:
        rgb = torch.tensor([(color >> shift & 0xFF) / 0xFF for shift in (16, 8, 0)], dtype=torch.float32)
        return (rgb.repeat(batch_size, height, width, 1),)


class ImageScale:
    DESCRIPTION = "Resizes an image to a given size."
    DISPLAY_NAME = "Upscale Image"
    CATEGORY = "image/upscaling"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "upscale"
    ESSENTIALS_CATEGORY = "Image Tools"
    SEARCH_ALIASES = ["resize", "scale", "size"]
    upscale_methods = IMAGE_SCALE_METHODS
    crop_methods = CROP_MODES

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": ("IMAGE", {"tooltip": "Image to resize."}),
                "upscale_method": (IMAGE_SCALE_METHODS, {"tooltip": "How new pixels are computed."}),
                "width": (
                    "INT",
                    {
                        "default": 512,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 1,
                        "tooltip": "New width in pixels; 0 follows from the height.",
                    },
                ),
                "height": (
                    "INT",
                    {
                        "default": 512,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 1,
                        "tooltip": "New height in pixels; 0 follows from the width.",
                    },
                ),
                "crop": (CROP_MODES, {"tooltip": "Whether to cut the image to the new aspect ratio first."}),
            }
        }

    def upscale(
        self, image: torch.Tensor, upscale_method: str, width: int, height: int, crop: str
    ) -> tuple[torch.Tensor]:
        return (scale_image(image, upscale_method, width, height, crop),)


class ImageScaleBy:
    DESCRIPTION = "Resizes an image by a factor."
    DISPLAY_NAME = "Upscale Image By"
    CATEGORY = "image/upscaling"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "upscale"
    ESSENTIALS_CATEGORY = "Image Tools"
    SEARCH_ALIASES = ["resize", "scale", "factor"]
    upscale_methods = IMAGE_SCALE_METHODS

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": ("IMAGE", {"tooltip": "Image to resize."}),
                "upscale_method": (IMAGE_SCALE_METHODS, {"tooltip": "How new pixels are computed."}),
                "scale_by": (
                    "FLOAT",
                    {"default": 1.0, "min": 0.01, "max": 8.0, "step": 0.01, "tooltip": "Factor for both sides."},
                ),
            }
        }

    def upscale(self, image: torch.Tensor, upscale_method: str, scale_by: float) -> tuple[torch.Tensor]:
        width, height = round(image.shape[2] * scale_by), round(image.shape[1] * scale_by)
        if width < 1 or height < 1:
            raise ValueError(f"scale_by {scale_by} makes an image of {image.shape[2]} x {image.shape[1]} pixels vanish")
        return (scale_image(image, upscale_method, width, height, "disabled"),)


class ImageInvert:
    DESCRIPTION = "Turns every colour into its opposite."
    DISPLAY_NAME = "Invert Image Colors"
    CATEGORY = "image/color"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "invert"
    ESSENTIALS_CATEGORY = "Image Tools"
    SEARCH_ALIASES = ["negative", "reverse colours"]

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE", {"tooltip": "Image to invert, alpha included."})}}

    def invert(self, image: torch.Tensor) -> tuple[torch.Tensor]:
        return (1.0 - image,)


class ImageBatch:
    DESCRIPTION = "Puts the images of two batches into one. The second is resized to the first."
    DISPLAY_NAME = "Batch Images (DEPRECATED)"
    CATEGORY = "image/batch"
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "batch"
    DEPRECATED = True
    SEARCH_ALIASES = ["merge", "join", "stack"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image1": ("IMAGE", {"tooltip": "First images; they set the size."}),
                "image2": ("IMAGE", {"tooltip": "Images to append."}),
            }
        }

    def batch(self, image1: torch.Tensor, image2: torch.Tensor) -> tuple[torch.Tensor]:
        channels = max(image1.shape[-1], image2.shape[-1])
        image1, image2 = (match_channels(image, channels) for image in on_one_device((image1, image2)))
        if image1.shape[1:3] != image2.shape[1:3]:
            image2 = scale_image(image2, "bilinear", image1.shape[2], image1.shape[1], "center")
        return (torch.cat((image1, image2)),)


class ImagePadForOutpaint:
    DESCRIPTION = "Adds a grey border and a mask of it, for painting beyond the edges."
    DISPLAY_NAME = "Pad Image for Outpainting"
    CATEGORY = "image/transform"
    RETURN_TYPES = ("IMAGE", "MASK")
    FUNCTION = "expand_image"
    SEARCH_ALIASES = ["extend canvas", "border", "outpainting"]
    OUTPUT_TOOLTIPS = (
        "The extended image.",
        "1 in the new border, fading to 0 inside.",
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": ("IMAGE", {"tooltip": "Image to extend."}),
                "left": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Pixels to add on the left."},
                ),
                "top": (
                    "INT",
                    {"default": 0, "min": 0, "max": MAX_RESOLUTION, "step": 8, "tooltip": "Pixels to add at the top."},
                ),
                "right": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Pixels to add on the right.",
                    },
                ),
                "bottom": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 8,
                        "tooltip": "Pixels to add at the bottom.",
                    },
                ),
                "feathering": (
                    "INT",
                    {
                        "default": 40,
                        "min": 0,
                        "max": MAX_RESOLUTION,
                        "step": 1,
                        "advanced": True,
                        "tooltip": "How far, in pixels, the mask fades into the old image.",
                    },
                ),
            }
        }

    def expand_image(
        self, image: torch.Tensor, left: int, top: int, right: int, bottom: int, feathering: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch, height, width, channels = image.shape
        canvas = torch.full((batch, height + top + bottom, width + left + right, channels), 0.5)
        canvas[:, top : top + height, left : left + width] = image
        mask = torch.ones(1, *canvas.shape[1:3])
        inside = torch.zeros(height, width)
        if feathering > 0 and feathering * 2 < min(height, width):
            inside = _fade(height, width, feathering, (left, top, right, bottom))
        mask[:, top : top + height, left : left + width] = inside
        return canvas, mask


def _fade(height: int, width: int, feathering: int, borders: tuple[int, int, int, int]) -> torch.Tensor:
    """[H,W]: ((feathering - d) / feathering)^2, d = distance in pixels to the nearest side with a border."""
    far = float(height + width)
    rows, columns = torch.arange(height).float()[:, None], torch.arange(width).float()[None, :]
    left, top, right, bottom = borders
    distance = torch.full((height, width), far)
    # The last row or column is `height` or `width` minus its index away, the first one its index.
    for present, along in ((left, columns), (top, rows), (right, width - columns), (bottom, height - rows)):
        if present:
            distance = torch.minimum(distance, along.expand(height, width))
    return ((feathering - distance) / feathering).clamp(min=0) ** 2


NODES = {
    "nodes": [EmptyImage, ImageScale, ImageScaleBy, ImageInvert, ImageBatch, ImagePadForOutpaint],
}
