"""Nodes that write animations, compare images and write texts."""

from __future__ import annotations

import io as bytes_io
import json
import random
import string
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import folder_paths
from comfy_api.latest import io

from . import deep_images, image_save

# TIFF tags that carry the metadata of animated WebP files: the prompt, then the others below it.
_EXIF_MODEL = 0x0110
_EXIF_MAKE = 0x010F


def _saved(name: str, files: image_save.OutputFiles, frames: int) -> dict:
    result = {"images": [{"filename": name, "subfolder": files.subfolder, "type": "output"}]}
    return {**result, "animated": [True]} if frames > 1 else result


def _encode(frames: list[Image.Image], file_format: str, fps: float, **options: Any) -> bytes:
    buffer = bytes_io.BytesIO()
    if len(frames) > 1:
        options.update(save_all=True, append_images=frames[1:], duration=int(1000.0 / fps))
    frames[0].save(buffer, format=file_format, **options)
    return buffer.getvalue()


class SaveAnimatedWEBP(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveAnimatedWEBP",
            display_name="Save Animated WEBP",
            category="image",
            description="Writes the images as one animated WebP file.",
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="Frames."),
                io.String.Input(
                    "filename_prefix", tooltip="Start of the file name, with sub-folders if wanted.", default="ComfyUI"
                ),
                io.Float.Input("fps", tooltip="Frames per second.", default=6.0, min=0.01, max=1000.0, step=0.01),
                io.Boolean.Input("lossless", tooltip="Whether pixels are kept exactly.", default=True),
                io.Int.Input("quality", tooltip="0 is small, 100 is good.", default=80, min=0, max=100),
                io.Combo.Input(
                    "method", options=["default", "fastest", "slowest"], tooltip="How long to look for a small file."
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
        )

    @classmethod
    def execute(
        cls, images: torch.Tensor, fps: float, filename_prefix: str, lossless: bool, quality: int, method: str
    ) -> io.NodeOutput:
        texts = image_save.metadata_texts(cls.hidden.prompt, cls.hidden.extra_pnginfo)
        exif = Image.Exif()
        tag = _EXIF_MAKE
        for key, text in texts.items():
            if key == "prompt":
                exif[_EXIF_MODEL] = f"prompt:{text}"
            else:
                exif[tag] = f"{key}:{text}"
                tag -= 1
        effort = {"default": 4, "fastest": 0, "slowest": 6}[method]
        frames = [image_save.to_pillow(image) for image in images]
        data = _encode(frames, "WEBP", fps, exif=exif, lossless=lossless, quality=quality, method=effort)
        files = image_save.OutputFiles(
            filename_prefix, folder_paths.get_output_directory(), images.shape[2], images.shape[1]
        )
        return io.NodeOutput(images, ui=_saved(files.write(data, "webp"), files, len(frames)))


class SaveAnimatedPNG(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveAnimatedPNG",
            display_name="Save Animated PNG",
            category="image",
            description="Writes the images as one animated PNG file.",
            is_output_node=True,
            inputs=[
                io.Image.Input("images", tooltip="Frames."),
                io.String.Input(
                    "filename_prefix", tooltip="Start of the file name, with sub-folders if wanted.", default="ComfyUI"
                ),
                io.Float.Input("fps", tooltip="Frames per second.", default=6.0, min=0.01, max=1000.0, step=0.01),
                io.Int.Input(
                    "compress_level", tooltip="0 is fast, 9 is small.", advanced=True, default=4, min=0, max=9
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
        )

    @classmethod
    def execute(
        cls, images: torch.Tensor, fps: float, compress_level: int, filename_prefix: str = "ComfyUI"
    ) -> io.NodeOutput:
        info = PngInfo()
        for key, text in image_save.metadata_texts(cls.hidden.prompt, cls.hidden.extra_pnginfo).items():
            # Text chunks of animations must come after the frames, which Pillow only allows for private chunks.
            body = key.encode("latin-1", "strict") + b"\0" + text.encode("latin-1", "strict")
            info.add(b"comf", body, after_idat=True)
        frames = [image_save.to_pillow(image) for image in images]
        data = _encode(frames, "PNG", fps, pnginfo=info, compress_level=compress_level)
        files = image_save.OutputFiles(
            filename_prefix, folder_paths.get_output_directory(), images.shape[2], images.shape[1]
        )
        return io.NodeOutput(images, ui=_saved(files.write(data, "png"), files, len(frames)))


# x and y of red, green, blue and white: ITU-R BT.709 and BT.2020.
_BT709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290)
_BT2020 = (0.708, 0.292, 0.170, 0.797, 0.131, 0.046, 0.3127, 0.3290)


def srgb_to_linear(values: torch.Tensor) -> torch.Tensor:
    """Light of sRGB values (IEC 61966-2-1)."""
    return torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055).clamp(min=0) ** 2.4)


def hlg_to_linear(values: torch.Tensor) -> torch.Tensor:
    """Scene light, 0..1, of hybrid log-gamma values (ITU-R BT.2100, table 5)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return torch.where(values <= 0.5, values**2 / 3, (torch.exp((values - c) / a) + b) / 12)


class SaveImageAdvanced(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveImageAdvanced",
            display_name="Save Image (Advanced)",
            category="image",
            description="Writes the images as PNG with 8 or 16 bits, or as OpenEXR.",
            search_aliases=["export", "16 bit", "hdr", "exr"],
            is_output_node=True,
            essentials_category="Basics",
            inputs=[
                io.Image.Input("images", tooltip="Images to write."),
                io.String.Input(
                    "filename_prefix", tooltip="Start of the file name, with sub-folders if wanted.", default="ComfyUI"
                ),
                io.DynamicCombo.Input(
                    "format",
                    options=[
                        io.DynamicCombo.Option(
                            "png",
                            [
                                io.Combo.Input(
                                    "bit_depth",
                                    options=["8-bit", "16-bit"],
                                    tooltip="Bits per channel.",
                                    advanced=True,
                                    default="8-bit",
                                ),
                                io.Combo.Input(
                                    "input_color_space",
                                    options=["sRGB"],
                                    tooltip="What the values of the images mean; OpenEXR files hold linear light.",
                                    advanced=True,
                                    default="sRGB",
                                ),
                            ],
                        ),
                        io.DynamicCombo.Option(
                            "exr",
                            [
                                io.Combo.Input(
                                    "bit_depth",
                                    options=["32-bit float"],
                                    tooltip="Bits per channel.",
                                    advanced=True,
                                    default="32-bit float",
                                ),
                                io.Combo.Input(
                                    "input_color_space",
                                    options=["sRGB", "HDR", "linear"],
                                    tooltip="What the values of the images mean; OpenEXR files hold linear light.",
                                    advanced=True,
                                    default="sRGB",
                                ),
                            ],
                        ),
                    ],
                    tooltip="Kind of file.",
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
        )

    @classmethod
    def execute(cls, images: torch.Tensor, filename_prefix: str, format: dict[str, Any]) -> io.NodeOutput:
        texts = image_save.metadata_texts(cls.hidden.prompt, cls.hidden.extra_pnginfo)
        files = image_save.OutputFiles(
            filename_prefix, folder_paths.get_output_directory(), images.shape[2], images.shape[1]
        )
        saved = []
        for number, image in enumerate(images):
            data = _encode_still(image, format, texts)
            name = files.write(data, format["format"], number, closing="")
            saved.append({"filename": name, "subfolder": files.subfolder, "type": "output"})
        return io.NodeOutput(images, ui={"images": saved})


def _encode_still(image: torch.Tensor, options: dict[str, Any], texts: dict[str, str]) -> bytes:
    if options["format"] == "png":
        if options["bit_depth"] == "8-bit":
            return deep_images.encode_png(image_save.to_uint8(image), texts)
        scaled = (image.detach().cpu().float() * 65535.0).clamp(0, 65535).nan_to_num(0.0)
        return deep_images.encode_png(scaled.numpy().astype(np.uint16), texts)
    space = options["input_color_space"]
    image = image.detach().cpu().float()
    light = image if space == "linear" else (hlg_to_linear if space == "HDR" else srgb_to_linear)(image)
    if image.shape[-1] == 4:
        # Opacity is no light.
        light[..., 3] = image[..., 3]
    return deep_images.encode_exr(light.numpy(), texts, _BT2020 if space == "HDR" else _BT709)


class ImageCompare(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ImageCompare",
            display_name="Compare Images",
            category="image",
            description="Shows two images on top of each other, with a slider between them.",
            is_output_node=True,
            is_experimental=True,
            essentials_category="Image Tools",
            inputs=[
                io.ImageCompare.Input("compare_view", socketless=True),
                io.Image.Input("image_a", tooltip="First image.", optional=True),
                io.Image.Input("image_b", tooltip="Second image.", optional=True),
            ],
            outputs=[],
        )

    @classmethod
    def execute(
        cls,
        compare_view: Any = None,
        image_a: torch.Tensor | None = None,
        image_b: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        shown = {"a_images": cls._preview(image_a, "a"), "b_images": cls._preview(image_b, "b")}
        return io.NodeOutput(ui=shown)

    @classmethod
    def _preview(cls, images: torch.Tensor | None, side: str) -> list[dict[str, str]]:
        if images is None or not len(images):
            return []
        suffix = "".join(random.choices(string.ascii_lowercase, k=5))
        return image_save.save_png_batch(
            images,
            f"comfy.compare.{side}_temp_{suffix}",
            folder_paths.get_temp_directory(),
            "temp",
            1,
            cls.hidden.prompt,
            cls.hidden.extra_pnginfo,
        )


class SaveText(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SaveText",
            display_name="Save Text",
            category="text",
            description="Writes a text file.",
            is_output_node=True,
            inputs=[
                io.String.Input("text", tooltip="Text to write.", force_input=True),
                io.String.Input(
                    "filename_prefix", tooltip="Start of the file name, with sub-folders if wanted.", default="ComfyUI"
                ),
                io.Combo.Input(
                    "format",
                    options=["txt", "csv", "md", "json"],
                    tooltip="Kind of file. JSON is re-indented.",
                    default="txt",
                ),
            ],
            outputs=[io.String.Output(display_name="text")],
        )

    @classmethod
    def execute(cls, text: str, filename_prefix: str, format: str) -> io.NodeOutput:
        content = _indented(text) if format == "json" else text
        files = image_save.OutputFiles(filename_prefix, folder_paths.get_output_directory())
        name = files.write(content.encode("utf-8"), format, closing="")
        saved = {"filename": name, "subfolder": files.subfolder, "type": "output"}
        return io.NodeOutput(text, ui={"text": [text], "files": [saved]})


def _indented(text: str) -> str:
    """JSON with an indent of 2; a text that is no JSON stays as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


NODES = {
    "comfy_extras.nodes_images": [SaveAnimatedWEBP, SaveAnimatedPNG, SaveImageAdvanced],
    "comfy_extras.nodes_image_compare": [ImageCompare],
    "comfy_extras.nodes_text": [SaveText],
}
