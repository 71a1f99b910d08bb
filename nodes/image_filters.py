"""Nodes that filter and blend images."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

import node_helpers
from comfy_api.latest import io

from .constants import MAX_SEED
from .image_save import to_uint8
from .images import on_one_device, scale_image


def gaussian_kernel(size: int, sigma: float, device: torch.device | None = None) -> torch.Tensor:
    """[size,size] Gauss bell that sums to 1. Distances run from -1 to 1, so sigma is relative to the radius."""
    axis = torch.linspace(-1, 1, size, device=device)
    distance = (axis[:, None] ** 2 + axis[None, :] ** 2).sqrt()
    bell = torch.exp(-(distance**2) / (2.0 * sigma**2))
    return bell / bell.sum()


def convolve(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Filter each channel of [B,H,W,C] with a square kernel [k,k]; edges are reflected."""
    channels, size = image.shape[-1], kernel.shape[0]
    padded = torch.nn.functional.pad(image.movedim(-1, 1), (size // 2,) * 4, "reflect")
    weights = kernel.to(image).expand(channels, 1, size, size)
    return torch.nn.functional.conv2d(padded, weights, groups=channels).movedim(1, -1)


class ImageBlur(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageBlur",
            display_name="Blur Image",
            category="image/filters",
            description="Blurs an image.",
            search_aliases=["soften", "gaussian"],
            inputs=[
                io.Image.Input("image", tooltip="Image to blur."),
                io.Int.Input("blur_radius", tooltip="Radius in pixels.", default=1, min=1, max=31, step=1),
                io.Float.Input(
                    "sigma",
                    tooltip="Width of the bell, relative to the radius.",
                    default=1.0,
                    min=0.1,
                    max=10.0,
                    step=0.1,
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, blur_radius: int, sigma: float) -> io.NodeOutput:
        if blur_radius == 0:
            return io.NodeOutput(image)
        return io.NodeOutput(convolve(image, gaussian_kernel(2 * blur_radius + 1, sigma)))


class ImageSharpen(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageSharpen",
            display_name="Sharpen Image",
            category="image/filters",
            description="Sharpens an image.",
            inputs=[
                io.Image.Input("image", tooltip="Image to sharpen."),
                io.Int.Input(
                    "sharpen_radius", tooltip="Radius in pixels.", advanced=True, default=1, min=1, max=31, step=1
                ),
                io.Float.Input(
                    "sigma",
                    tooltip="Width of the blur that is taken away, relative to the radius.",
                    advanced=True,
                    default=1.0,
                    min=0.1,
                    max=10.0,
                    step=0.01,
                ),
                io.Float.Input("alpha", tooltip="Strength.", advanced=True, default=1.0, min=0.0, max=5.0, step=0.01),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, sharpen_radius: int, sigma: float, alpha: float) -> io.NodeOutput:
        if sharpen_radius == 0:
            return io.NodeOutput(image)
        size = 2 * sharpen_radius + 1
        kernel = gaussian_kernel(size, sigma) * -(alpha * 10)
        kernel[size // 2, size // 2] -= kernel.sum() - 1.0
        return io.NodeOutput(convolve(image, kernel).clamp(0, 1))


class ImageBlend(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageBlend",
            display_name="Blend Images",
            category="image/filters",
            description="Blends two images.",
            search_aliases=["mix", "overlay", "multiply", "screen"],
            essentials_category="Image Tools",
            inputs=[
                io.Image.Input("image1", tooltip="First image; it sets the size."),
                io.Image.Input("image2", tooltip="Second image, resized if need be."),
                io.Float.Input(
                    "blend_factor",
                    tooltip="How much of the blended colours to use.",
                    default=0.5,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                ),
                io.Combo.Input(
                    "blend_mode",
                    options=["normal", "multiply", "screen", "overlay", "soft_light", "difference"],
                    tooltip="How colours are blended.",
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image1: torch.Tensor, image2: torch.Tensor, blend_factor: float, blend_mode: str) -> io.NodeOutput:
        image1, image2 = node_helpers.image_alpha_fix(image1, image2)
        image2 = image2.to(image1.device)
        if image1.shape != image2.shape:
            image2 = scale_image(image2, "bicubic", image1.shape[2], image1.shape[1], "center")
        blended = _BLEND_MODES[blend_mode](image1, image2)
        return io.NodeOutput((image1 * (1 - blend_factor) + blended * blend_factor).clamp(0, 1))


def _overlay(base: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    return torch.where(base <= 0.5, 2 * base * top, 1 - 2 * (1 - base) * (1 - top))


def _soft_light(base: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Soft light as in the W3C compositing specification, section 10.1."""
    curve = torch.where(base <= 0.25, ((16 * base - 12) * base + 4) * base, base.sqrt())
    return torch.where(top <= 0.5, base - (1 - 2 * top) * base * (1 - base), base + (2 * top - 1) * (curve - base))


_BLEND_MODES = {
    "normal": lambda base, top: top,
    "multiply": lambda base, top: base * top,
    "screen": lambda base, top: 1 - (1 - base) * (1 - top),
    "overlay": _overlay,
    "soft_light": _soft_light,
    "difference": lambda base, top: base - top,
}


class ImageQuantize(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageQuantize",
            display_name="Quantize Image",
            category="image/filters",
            description="Reduces an image to a few colours.",
            search_aliases=["palette", "posterize", "dither"],
            inputs=[
                io.Image.Input("image", tooltip="Image to reduce."),
                io.Int.Input("colors", tooltip="Number of colours.", default=256, min=1, max=256, step=1),
                io.Combo.Input(
                    "dither",
                    options=["none", "floyd-steinberg", "bayer-2", "bayer-4", "bayer-8", "bayer-16"],
                    tooltip="Pattern that hides the steps between them.",
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, colors: int, dither: str) -> io.NodeOutput:
        result = [_quantize(Image.fromarray(to_uint8(single)), colors, dither) for single in image]
        return io.NodeOutput(torch.from_numpy(np.stack(result)))


def _quantize(picture: Image.Image, colors: int, dither: str) -> np.ndarray:
    """[H,W,3] floats of an RGB picture with at most `colors` colours, found by median cut."""
    palette = picture.quantize(colors=colors)
    if dither.startswith("bayer"):
        picture = _add_bayer(picture, palette, int(dither.split("-")[1]))
    method = Image.Dither.FLOYDSTEINBERG if dither == "floyd-steinberg" else Image.Dither.NONE
    quantized = picture.quantize(colors=colors, palette=palette, dither=method)
    return np.asarray(quantized.convert("RGB"), dtype=np.float32) / 255.0


def _bayer_matrix(order: int) -> np.ndarray:
    """Ordered dither matrix [order,order] with values -0.5 … 0.5 (Bayer, 1973)."""
    matrix = np.zeros((1, 1))
    while len(matrix) < order:
        matrix = np.block([[4 * matrix, 4 * matrix + 2], [4 * matrix + 3, 4 * matrix + 1]])
    return (matrix + 0.5) / order**2 - 0.5


def _add_bayer(picture: Image.Image, palette: Image.Image, order: int) -> Image.Image:
    # The fewer colours, the farther apart they are, and the stronger the pattern has to be.
    entries = len(palette.getpalette()) // 3
    matrix = _bayer_matrix(order) * (512 / entries) + 0.5
    height, width = picture.height, picture.width
    tiled = np.tile(matrix, (height // order + 1, width // order + 1))[:height, :width, None]
    values = np.asarray(picture, dtype=np.float32) + tiled.astype(np.float32)
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


class ImageAddNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageAddNoise",
            display_name="Add Noise to Image",
            category="image/filters",
            description="Adds noise to an image.",
            inputs=[
                io.Image.Input("image", tooltip="Image to change."),
                io.Int.Input(
                    "seed", tooltip="Seed of the noise.", default=0, min=0, max=MAX_SEED, control_after_generate=True
                ),
                io.Float.Input("strength", tooltip="Strength.", default=0.5, min=0.0, max=1.0, step=0.01),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, seed: int, strength: float) -> io.NodeOutput:
        # Drawn on the CPU, so that a seed means the same on every machine.
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(image.shape, generator=generator, device="cpu").to(image)
        return io.NodeOutput((image + strength * noise).clamp(0, 1))


class Morphology(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="Morphology",
            display_name="Apply Morphology",
            category="image/filters",
            description="Grows or shrinks the bright parts of an image.",
            inputs=[
                io.Image.Input("image", tooltip="Image to change."),
                io.Combo.Input(
                    "operation",
                    options=["erode", "dilate", "open", "close", "gradient", "bottom_hat", "top_hat"],
                    tooltip="What to do.",
                ),
                io.Int.Input(
                    "kernel_size", tooltip="Side of the square that is looked at.", default=3, min=3, max=999, step=1
                ),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, operation: str, kernel_size: int) -> io.NodeOutput:
        result = _morphology(image.movedim(-1, 1), operation, kernel_size)
        return io.NodeOutput(result.movedim(1, -1))


def _dilate(image: torch.Tensor, size: int) -> torch.Tensor:
    """Largest value in a square around each pixel of [B,C,H,W]."""
    return _largest(image, size, (size - 1) // 2)


def _erode(image: torch.Tensor, size: int) -> torch.Tensor:
    """Smallest value in the mirrored square, so that eroding and dilating cancel out when the side is even."""
    return -_largest(-image, size, size // 2)


def _largest(image: torch.Tensor, size: int, before: int) -> torch.Tensor:
    padded = torch.nn.functional.pad(image, (before, size - 1 - before) * 2, value=float("-inf"))
    return torch.nn.functional.max_pool2d(padded, size, stride=1)


def _morphology(image: torch.Tensor, operation: str, size: int) -> torch.Tensor:
    """[B,C,H,W]; the operations of mathematical morphology (Serra, 1982)."""
    if operation == "erode":
        return _erode(image, size)
    if operation == "dilate":
        return _dilate(image, size)
    if operation == "gradient":
        return _dilate(image, size) - _erode(image, size)
    opened = operation in ("open", "top_hat")
    smoothed = _dilate(_erode(image, size), size) if opened else _erode(_dilate(image, size), size)
    if operation == "top_hat":
        return image - smoothed
    if operation == "bottom_hat":
        return smoothed - image
    return smoothed


class ImageRGBToYUV(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageRGBToYUV",
            display_name="Image RGB to YUV",
            category="image/color",
            description="Splits an image into brightness and two colour differences.",
            inputs=[io.Image.Input("image", tooltip="Image to split.")],
            outputs=[
                io.Image.Output(display_name="Y"),
                io.Image.Output(display_name="U"),
                io.Image.Output(display_name="V"),
            ],
        )

    @classmethod
    def execute(cls, image: torch.Tensor) -> io.NodeOutput:
        return io.NodeOutput(*(plane.expand(*plane.shape[:-1], 3) for plane in _rgb_to_ycbcr(image)))


def _rgb_to_ycbcr(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(Y, Cb, Cr) of [B,H,W,3], each [B,H,W,1]; full range, BT.601 weights, chroma centred on 0.5."""
    if image.shape[-1] != 3:
        raise ValueError(f"the image has {image.shape[-1]} channels, expected 3")
    red, green, blue = image.split(1, dim=-1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return luma, (blue - luma) * 0.564 + 0.5, (red - luma) * 0.713 + 0.5


class ImageYUVToRGB(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageYUVToRGB",
            display_name="Image YUV to RGB",
            category="image/color",
            description="Makes an image from brightness and two colour differences.",
            inputs=[
                io.Image.Input("Y", tooltip="Brightness."),
                io.Image.Input("U", tooltip="Blue difference."),
                io.Image.Input("V", tooltip="Red difference."),
            ],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, Y: torch.Tensor, U: torch.Tensor, V: torch.Tensor) -> io.NodeOutput:
        luma, blue_difference, red_difference = (plane.mean(dim=-1) for plane in on_one_device((Y, U, V)))
        # The exact inverse of the split above.
        red = luma + (red_difference - 0.5) / 0.713
        blue = luma + (blue_difference - 0.5) / 0.564
        green = (luma - 0.299 * red - 0.114 * blue) / 0.587
        return io.NodeOutput(torch.stack((red, green, blue), dim=-1).clamp(0, 1))


NODES = {
    "comfy_extras.nodes_post_processing": [ImageBlur, ImageSharpen, ImageBlend, ImageQuantize],
    "comfy_extras.nodes_images": [ImageAddNoise],
    "comfy_extras.nodes_morphology": [Morphology, ImageRGBToYUV, ImageYUVToRGB],
}
