"""Core nodes that read and write image files."""

from __future__ import annotations

import os
import random
import string
from typing import Any

import torch

import folder_paths
import node_helpers

from . import image_save
from .image_decode import decode


def list_input_images() -> list[str]:
    """Names of the image files that lie in the input folder itself, sorted."""
    return folder_paths.get_top_files(folder_paths.get_input_directory(), "image")


def file_digest(path: str) -> str:
    """Hash of a file's content, read in pieces."""
    digest = node_helpers.hasher()()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_input_file(name: Any) -> bool | str:
    """True when a file name, possibly annotated with its folder, can be read; else the reason."""
    return True if is_readable_file(name) else f"Invalid image file: {name}"


def is_readable_file(name: Any) -> bool:
    """Whether a name from a client is that of a file (no folder) inside one of the server's folders."""
    try:
        return isinstance(name, str) and os.path.isfile(folder_paths.get_annotated_filepath(name))
    except (ValueError, OSError):
        return False


class SaveImage:
    DESCRIPTION = "Writes the images as PNG files into the output folder, with the workflow inside."
    DISPLAY_NAME = "Save Image"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    FUNCTION = "save_images"
    OUTPUT_NODE = True
    ESSENTIALS_CATEGORY = "Basics"
    SEARCH_ALIASES = ["export", "write file", "store"]
    OUTPUT_TOOLTIPS = ("The images that were saved, unchanged.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "images": ("IMAGE", {"tooltip": "Images to write."}),
                "filename_prefix": (
                    "STRING",
                    {
                        "default": "ComfyUI",
                        "tooltip": (
                            "Start of the file name, with sub-folders if wanted. %width%, %height%, %year%,"
                            " %month%, %day%, %hour%, %minute%, %second% and %batch_num% are filled in."
                        ),
                    },
                ),
            },
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def __init__(self) -> None:
        # Packs derive from this class and set these four.
        self.output_dir = folder_paths.get_output_directory()
        self.type = "output"
        self.prefix_append = ""
        self.compress_level = 4

    def save_images(
        self,
        images: torch.Tensor,
        filename_prefix: str = "ComfyUI",
        prompt: Any = None,
        extra_pnginfo: Any = None,
    ) -> dict:
        """images: [B,H,W,C] in 0..1."""
        results = image_save.save_png_batch(
            images,
            filename_prefix + self.prefix_append,
            self.output_dir,
            self.type,
            self.compress_level,
            prompt,
            extra_pnginfo,
        )
        return {"ui": {"images": results}, "result": (images,)}


class PreviewImage(SaveImage):
    DESCRIPTION = "Shows the images; the files are temporary."
    DISPLAY_NAME = "Preview Image"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    FUNCTION = "save_images"
    OUTPUT_NODE = True
    ESSENTIALS_CATEGORY = "Basics"
    SEARCH_ALIASES = ["show", "view", "display"]
    OUTPUT_TOOLTIPS = ("The images that were shown, unchanged.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"images": ("IMAGE", {"tooltip": "Images to show."})},
            "hidden": {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def __init__(self) -> None:
        self.output_dir = folder_paths.get_temp_directory()
        self.type = "temp"
        self.prefix_append = "_temp_" + "".join(random.choices(string.ascii_lowercase, k=5))
        # Written often and read once: speed before size.
        self.compress_level = 1


class LoadImage:
    DESCRIPTION = "Reads an image from the input folder. Transparency comes out as a mask."
    DISPLAY_NAME = "Load Image"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE", "MASK")
    FUNCTION = "load_image"
    ESSENTIALS_CATEGORY = "Basics"
    SEARCH_ALIASES = ["open", "import", "read picture"]
    OUTPUT_TOOLTIPS = (
        "The picture, or all frames of an animation.",
        "1 where the picture is transparent; 64 x 64 zeros if it has no transparency.",
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": (
                    list_input_images(),
                    {"image_upload": True, "tooltip": "File in the input folder; upload adds one."},
                )
            }
        }

    def load_image(self, image: str) -> tuple[torch.Tensor, torch.Tensor]:
        """-> (images [B,H,W,3], mask [B,H,W])."""
        decoded = decode(folder_paths.get_annotated_filepath(image))
        return decoded.images, decoded.mask

    @classmethod
    def IS_CHANGED(cls, image: str) -> str:
        return file_digest(folder_paths.get_annotated_filepath(image))

    @classmethod
    def VALIDATE_INPUTS(cls, image: str) -> bool | str:
        return check_input_file(image)


class LoadImageMask:
    DESCRIPTION = "Reads one channel of an image file as a mask."
    DISPLAY_NAME = "Load Image (as Mask)"
    CATEGORY = "image"
    RETURN_TYPES = ("MASK",)
    FUNCTION = "load_image"
    ESSENTIALS_CATEGORY = "Image Tools"
    SEARCH_ALIASES = ["import mask", "alpha", "channel"]
    _channels = ["alpha", "red", "green", "blue"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": (
                    list_input_images(),
                    {"image_upload": True, "tooltip": "File in the input folder; upload adds one."},
                ),
                "channel": (
                    cls._channels,
                    {"tooltip": "Colour channel to use. Alpha is inverted: transparent becomes 1."},
                ),
            }
        }

    def load_image(self, image: str, channel: str) -> tuple[torch.Tensor]:
        """-> mask [B,H,W]."""
        decoded = decode(folder_paths.get_annotated_filepath(image))
        if channel == "alpha":
            return (decoded.mask,)
        return (decoded.images[..., self._channels.index(channel) - 1].contiguous(),)

    @classmethod
    def IS_CHANGED(cls, image: str, channel: str) -> str:
        return file_digest(folder_paths.get_annotated_filepath(image))

    @classmethod
    def VALIDATE_INPUTS(cls, image: str) -> bool | str:
        return check_input_file(image)


class LoadImageOutput(LoadImage):
    DESCRIPTION = "Reads an image that an earlier run left in the output folder."
    DISPLAY_NAME = "Load Image (from Outputs)"
    CATEGORY = "image"
    RETURN_TYPES = ("IMAGE", "MASK")
    FUNCTION = "load_image"
    EXPERIMENTAL = True
    ESSENTIALS_CATEGORY = "Basics"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "image": (
                    "COMBO",
                    {
                        "image_upload": True,
                        "image_folder": "output",
                        "remote": {
                            "route": "/internal/files/output",
                            "refresh_button": True,
                            "control_after_refresh": "first",
                        },
                        "tooltip": "File in the output folder.",
                    },
                )
            }
        }


class SaveImageWebsocket:
    DESCRIPTION = "Sends the images over the websocket instead of writing files."
    DISPLAY_NAME = "Save Image (Websocket)"
    CATEGORY = "image"
    RETURN_TYPES = ()
    FUNCTION = "save_images"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"images": ("IMAGE", {"tooltip": "Images to send, as PNG."})}}

    def save_images(self, images: torch.Tensor) -> dict:
        from comfy.utils import ProgressBar

        progress = ProgressBar(images.shape[0])
        for step, image in enumerate(images):
            progress.update_absolute(step, images.shape[0], ("PNG", image_save.to_pillow(image), None))
        return {}

    @classmethod
    def IS_CHANGED(cls, images: Any) -> float:
        # Sending is the purpose, so it has to happen every time.
        return float("nan")


NODES = {
    "nodes": [SaveImage, PreviewImage, LoadImage, LoadImageMask, LoadImageOutput],
    "custom_nodes.websocket_image_save": [SaveImageWebsocket],
}
