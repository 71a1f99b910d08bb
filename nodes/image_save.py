"""Tensors -> PNG files with the metadata ComfyUI clients read back (spec: http-api.md, section 8)."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import uuid
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import folder_paths
from comfy.cli_args import args


def to_uint8(image: torch.Tensor) -> np.ndarray:
    """[..., C] floats -> bytes: clipped to 0..1, scaled by 255 and cut off (not rounded), as the reference does."""
    return (image.detach().cpu().float() * 255.0).clamp(0, 255).nan_to_num(0.0).numpy().astype(np.uint8)


def to_pillow(image: torch.Tensor) -> Image.Image:
    """[H,W,C] with 1, 3 or 4 channels -> grey, RGB or RGBA picture."""
    pixels = to_uint8(image)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def json_text(value: Any) -> str:
    """JSON for metadata. NaN and infinities, which JSON does not have, become null; other objects their text."""
    try:
        return json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_without_nan(value), allow_nan=False, default=str)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def metadata_texts(prompt: Any = None, extra_pnginfo: Any = None) -> dict[str, str]:
    """Name -> JSON text: `prompt`, then the keys of extra_pnginfo. Empty with --disable-metadata."""
    if args.disable_metadata:
        return {}
    texts = {} if prompt is None else {"prompt": json_text(prompt)}
    if isinstance(extra_pnginfo, dict):
        texts.update((key, json_text(value)) for key, value in extra_pnginfo.items())
    return texts


def png_info(prompt: Any = None, extra_pnginfo: Any = None) -> PngInfo | None:
    """The metadata as PNG text chunks; None when there are to be none."""
    texts = metadata_texts(prompt, extra_pnginfo)
    if args.disable_metadata:
        return None
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    return info


class OutputFiles:
    """Numbered files of one prefix: `<base>_<counter>_.<ext>` (spec: goldens/nodes/README.md, "Saving").

    Two writers never get the same name: a name is taken by creating the file, and if it exists already, the next
    number is tried. A file has all its bytes from the moment it has its name, even if the process is killed.
    """

    def __init__(self, prefix: str, directory: str, width: int = 0, height: int = 0):
        self.folder, self.base, self.counter, self.subfolder, _ = folder_paths.get_save_image_path(
            prefix, directory, width, height
        )

    def write(self, data: bytes, extension: str, batch: int = 0, closing: str = "_") -> str:
        """Write one file and return its name. `%batch_num%` in the prefix becomes `batch`."""
        base = self.base.replace("%batch_num%", str(batch))
        while True:
            name = f"{base}_{self.counter:05}{closing}.{extension}"
            self.counter += 1
            path = os.path.join(self.folder, name)
            try:
                _write_whole(data, path)
                return name
            except FileExistsError:
                continue


def _write_whole(data: bytes, path: str) -> None:
    """Write a new file that is either whole or not there. Raises FileExistsError if there is one of that name."""
    folder = os.path.dirname(path)
    unfinished = os.path.join(folder, f".{uuid.uuid4().hex}.part")  # not longer than any name of ours
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
        try:
            os.link(unfinished, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links here: take the name first, then put the bytes there in one step
            with open(path, "xb"):
                pass
            try:
                os.replace(unfinished, path)
            except OSError:
                os.unlink(path)
                raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def save_png_batch(
    images: torch.Tensor,
    prefix: str,
    directory: str,
    kind: str,
    compress_level: int = 4,
    prompt: Any = None,
    extra_pnginfo: Any = None,
) -> list[dict[str, str]]:
    """Save [B,H,W,C] as PNG files; returns `{"filename", "subfolder", "type"}` for each.

    Raises folder_paths.PathOutsideFolder when the prefix leaves the directory.
    """
    files = OutputFiles(prefix, directory, images[0].shape[1], images[0].shape[0])
    info = png_info(prompt, extra_pnginfo)
    results = []
    for batch, image in enumerate(images):
        buffer = io.BytesIO()
        to_pillow(image).save(buffer, format="PNG", pnginfo=info, compress_level=compress_level)
        name = files.write(buffer.getvalue(), "png", batch)
        results.append({"filename": name, "subfolder": files.subfolder, "type": kind})
    return results
