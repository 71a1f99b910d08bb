"""Image files -> tensors (goldens/nodes/README.md, "Loading images").

The reference decodes with FFmpeg, whose scaler turns some 8-bit sources into 16-bit numbers by a shift: value v becomes
v * 256 / 65535, so white is 0.9961. Those numbers end up in saved images and in seeds of workflows, so they are
reproduced here (`Scale.SHIFTED`). Files without such a detour give v / 255.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError

from . import png16

# Sizes of the mask that stands for "this file has no alpha channel".
_NO_ALPHA_SIZE = 64
_VIDEO_SUFFIXES = (".mp4", ".webm", ".mkv", ".mov", ".avi")


class ImageFileError(ValueError):
    """A file cannot be read as an image. The message names the file and says why."""


class Scale(enum.Enum):
    """How an 8-bit value becomes a float."""

    PLAIN = 1 / 255
    SHIFTED = 256 / 65535


@dataclass(frozen=True)
class Decoded:
    """images: [B,H,W,3] float32 in 0..1. mask: [B,H,W] float32, 1 - alpha; [B,64,64] zeros without an alpha channel.

    has_alpha tells the two apart.
    """

    images: torch.Tensor
    mask: torch.Tensor
    has_alpha: bool


def decode(path: str) -> Decoded:
    """Read an image file with EXIF orientation applied; animated PNG, GIF and WebP give a batch.

    Raises ImageFileError when it is no image, empty, truncated or too large.
    """
    name = os.path.basename(path)
    if os.path.getsize(path) == 0:
        raise ImageFileError(f"{name}: the file is empty")
    if name.lower().endswith(_VIDEO_SUFFIXES):
        return _decode_video(path)
    try:
        deep = png16.read(path)
        if deep is not None:
            return _finish([_split_alpha(deep.astype(np.float32) / 65535)])
        with Image.open(path) as image:
            return _decode_pillow(image)
    except UnidentifiedImageError:
        raise ImageFileError(f"{name}: not an image, or of an unknown format ({_looks_like(path)})") from None
    except Image.DecompressionBombError as error:
        raise ImageFileError(f"{name}: refused, it would unpack to too many pixels ({error})") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise ImageFileError(f"{name}: damaged or cut off ({error})") from error


def _looks_like(path: str) -> str:
    with open(path, "rb") as f:
        head = f.read(512).lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "it looks like a web page"
    if b"<svg" in head:
        return "SVG is not supported"
    return f"{os.path.getsize(path)} bytes"


def _decode_pillow(image: Image.Image) -> Decoded:
    animated = image.format in ("PNG", "GIF", "WEBP") and getattr(image, "n_frames", 1) > 1
    frames = []
    for frame in ImageSequence.Iterator(image):
        frames.append(_frame(frame, image.format, animated))
        if not animated:
            break
    return _finish(frames)


def _frame(frame: Image.Image, file_format: str, animated: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """(rgb [H,W,3], alpha [H,W] or None) of one frame, floats in 0..1."""
    frame.load()
    lossless_webp = file_format == "WEBP" and not animated and _is_lossless_webp(frame)
    frame = ImageOps.exif_transpose(frame)
    mode = frame.mode
    if mode.startswith("I;16") or mode == "I":
        return _grey(np.asarray(frame, dtype=np.float32) / 65535)
    if mode == "F":
        return _grey(np.clip(np.asarray(frame, dtype=np.float32), 0.0, 1.0))

    scale = _scale(frame, file_format, animated)
    has_alpha = frame.has_transparency_data
    # These decoders of the reference always deliver an alpha channel.
    always_alpha = (
        (mode == "P" and file_format == "PNG")
        or file_format == "GIF"
        or (mode == "CMYK" and file_format == "JPEG")
        or lossless_webp
    )
    pixels = np.asarray(frame.convert("RGBA" if has_alpha else "RGB"), dtype=np.float32) * scale.value
    rgb, alpha = _split_alpha(pixels)
    if alpha is None and always_alpha:
        alpha = np.full(rgb.shape[:2], 255 * scale.value, dtype=np.float32)
    return rgb, alpha


def _scale(frame: Image.Image, file_format: str, animated: bool) -> Scale:
    if file_format in ("GIF", "BMP"):
        return Scale.SHIFTED
    if file_format == "WEBP":
        # Animations are not understood by the reference's first decoder, and come from Pillow.
        return Scale.PLAIN if animated else Scale.SHIFTED
    return Scale.SHIFTED if frame.mode in ("1", "L", "LA", "CMYK") else Scale.PLAIN


def _is_lossless_webp(image: Image.Image) -> bool:
    if not getattr(image, "filename", ""):
        return False
    with open(image.filename, "rb") as f:
        return b"VP8L" in f.read(4096)


def _grey(values: np.ndarray) -> tuple[np.ndarray, None]:
    return np.repeat(values[..., None], 3, axis=-1), None


def _split_alpha(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    channels = pixels.shape[-1]
    if channels in (1, 2):
        rgb = np.repeat(pixels[..., :1], 3, axis=-1)
    else:
        rgb = pixels[..., :3]
    return rgb, (pixels[..., -1] if channels in (2, 4) else None)


def _finish(frames: list[tuple[np.ndarray, np.ndarray | None]]) -> Decoded:
    images = torch.from_numpy(np.ascontiguousarray(np.stack([rgb for rgb, _ in frames])))
    if all(alpha is None for _, alpha in frames):
        mask = torch.zeros(len(frames), _NO_ALPHA_SIZE, _NO_ALPHA_SIZE)
        return Decoded(images, mask, False)
    alphas = [np.ones(rgb.shape[:2], np.float32) if alpha is None else alpha for rgb, alpha in frames]
    return Decoded(images, 1.0 - torch.from_numpy(np.stack(alphas)), True)


def _decode_video(path: str) -> Decoded:
    name = os.path.basename(path)
    try:
        import av
    except ModuleNotFoundError:
        raise ImageFileError(f"{name}: reading video files needs the package `av`") from None
    try:
        with av.open(path) as container:
            frames = [f.to_ndarray(format="gbrpf32le") for f in container.decode(video=0)]
    except (av.FFmpegError, IndexError) as error:
        raise ImageFileError(f"{name}: cannot be read as a video ({error})") from error
    if not frames:
        raise ImageFileError(f"{name}: the video has no frames")
    images = torch.from_numpy(np.stack(frames))
    return Decoded(images, torch.zeros(len(frames), _NO_ALPHA_SIZE, _NO_ALPHA_SIZE), False)
