"""Saving images and sound with the prompt as metadata (spec node-api.md 3.5)."""

from __future__ import annotations

import json
import os
import random
import string
import uuid
from fractions import Fraction
from typing import Any

from comfy_api.latest._base import enum_value
from comfy_api.latest._widgets import FolderType
from comfy_api.latest.shown import SavedAudios, SavedImages, SavedResult

_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_WEBP_METHODS = {"default": 4, "fastest": 0, "slowest": 6}


def to_pil(image: Any) -> Any:
    """An image tensor [H,W,C] with values from 0 to 1 as an 8-bit PIL image."""
    import numpy as np
    from PIL import Image

    pixels = np.clip(image.detach().cpu().float().numpy() * 255.0, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)


def random_prefix() -> str:
    """A file name for the temp folder."""
    return "ComfyUI_temp_" + "".join(random.choices(string.ascii_lowercase, k=5))


def metadata_of(cls: Any) -> dict[str, Any]:
    """Prompt and extra_pnginfo of a running node class; nothing with --disable-metadata."""
    from comfy.cli_args import args

    if cls is None or args.disable_metadata:
        return {}
    hidden = cls.hidden
    found = {} if hidden.prompt is None else {"prompt": hidden.prompt}
    return {**found, **(hidden.extra_pnginfo or {})}


def _metadata(cls: Any) -> dict[str, str]:
    """The same as JSON texts."""
    return {key: json.dumps(value) for key, value in metadata_of(cls).items()}


def _png_info(cls: Any) -> Any:
    from PIL.PngImagePlugin import PngInfo

    metadata = _metadata(cls)
    if not metadata:
        return None
    info = PngInfo()
    for key, text in metadata.items():
        info.add_text(key, text)
    return info


def _exif(image: Any, cls: Any) -> Any:
    """EXIF of animated WebP files: the prompt as camera model, each further entry in the tags below it."""
    exif = image.getexif()
    metadata = _metadata(cls)
    if "prompt" in metadata:
        exif[0x0110] = "prompt:" + metadata.pop("prompt")
    for number, (key, text) in enumerate(metadata.items()):
        exif[0x010F - number] = f"{key}:{text}"
    return exif


def _place(filename_prefix: str, folder_type: FolderType, width: int = 0, height: int = 0) -> tuple[str, str, int, str]:
    """Folder, file name, next number and subfolder for files with this prefix."""
    import folder_paths

    root = folder_paths.get_directory_by_type(enum_value(folder_type))
    folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(filename_prefix, root, width, height)
    return folder, name, counter, subfolder


class ImageSaveHelper:
    """Saving images [B,H,W,C] with values from 0 to 1."""

    @staticmethod
    def save_images(
        images: Any, filename_prefix: str, folder_type: FolderType, cls: Any, compress_level: int = 4
    ) -> list[SavedResult]:
        """Save each image as a PNG file."""
        folder, name, counter, subfolder = _place(filename_prefix, folder_type, images[0].shape[1], images[0].shape[0])
        info = _png_info(cls)
        results = []
        for number, image in enumerate(images):
            file = f"{name.replace('%batch_num%', str(number))}_{counter + number:05}_.png"
            to_pil(image).save(os.path.join(folder, file), pnginfo=info, compress_level=compress_level)
            results.append(SavedResult(file, subfolder, folder_type))
        return results

    @staticmethod
    def get_save_images_ui(images: Any, filename_prefix: str, cls: Any, compress_level: int = 4) -> SavedImages:
        """Save to the output folder; the UI data of it."""
        return SavedImages(ImageSaveHelper.save_images(images, filename_prefix, FolderType.output, cls, compress_level))

    @staticmethod
    def save_animated_png(
        images: Any, filename_prefix: str, folder_type: FolderType, cls: Any, fps: float, compress_level: int
    ) -> SavedResult:
        """Save the images as the frames of one animated PNG."""
        from PIL.PngImagePlugin import PngInfo

        folder, name, counter, subfolder = _place(filename_prefix, folder_type, images[0].shape[1], images[0].shape[0])
        info = None
        for key, text in _metadata(cls).items():
            info = info or PngInfo()
            # Text chunks before the first frame are lost when frames are appended; `after_idat` ones are kept.
            info.add(
                b"comf", key.encode("latin-1", "strict") + b"\0" + text.encode("latin-1", "strict"), after_idat=True
            )
        file = f"{name}_{counter:05}_.png"
        frames = [to_pil(image) for image in images]
        frames[0].save(
            os.path.join(folder, file),
            pnginfo=info,
            compress_level=compress_level,
            save_all=True,
            duration=int(1000.0 / fps),
            append_images=frames[1:],
        )
        return SavedResult(file, subfolder, folder_type)

    @staticmethod
    def get_save_animated_png_ui(
        images: Any, filename_prefix: str, cls: Any, fps: float, compress_level: int
    ) -> SavedImages:
        """Save to the output folder; the UI data of it."""
        result = ImageSaveHelper.save_animated_png(images, filename_prefix, FolderType.output, cls, fps, compress_level)
        return SavedImages([result], is_animated=len(images) > 1)

    @staticmethod
    def save_animated_webp(
        images: Any,
        filename_prefix: str,
        folder_type: FolderType,
        cls: Any,
        fps: float,
        lossless: bool,
        quality: int,
        method: int | str,
    ) -> SavedResult:
        """Save the images as the frames of one animated WebP."""
        folder, name, counter, subfolder = _place(filename_prefix, folder_type, images[0].shape[1], images[0].shape[0])
        file = f"{name}_{counter:05}_.webp"
        frames = [to_pil(image) for image in images]
        frames[0].save(
            os.path.join(folder, file),
            save_all=True,
            duration=int(1000.0 / fps),
            append_images=frames[1:],
            exif=_exif(frames[0], cls),
            lossless=lossless,
            quality=quality,
            method=_WEBP_METHODS.get(method, method),
        )
        return SavedResult(file, subfolder, folder_type)

    @staticmethod
    def get_save_animated_webp_ui(
        images: Any, filename_prefix: str, cls: Any, fps: float, lossless: bool, quality: int, method: int | str
    ) -> SavedImages:
        """Save to the output folder; the UI data of it."""
        result = ImageSaveHelper.save_animated_webp(
            images, filename_prefix, FolderType.output, cls, fps, lossless, quality, method
        )
        return SavedImages([result], is_animated=len(images) > 1)


class AudioSaveHelper:
    """Saving sound `{"waveform": [B,C,T], "sample_rate": Hz}`."""

    @staticmethod
    def save_audio(
        audio: dict[str, Any],
        filename_prefix: str,
        folder_type: FolderType,
        cls: Any,
        format: str = "flac",
        quality: str = "128k",
    ) -> list[SavedResult]:
        """Save each sound of the batch as flac, mp3 or opus; `quality` is a bit rate like 128k, or V0 for mp3."""
        folder, name, counter, subfolder = _place(filename_prefix, folder_type)
        metadata = _metadata(cls)
        results = []
        for number, waveform in enumerate(audio["waveform"].detach().cpu().float()):
            file = f"{name.replace('%batch_num%', str(number))}_{counter + number:05}.{format}"
            _encode_audio(os.path.join(folder, file), waveform, audio["sample_rate"], format, quality, metadata)
            results.append(SavedResult(file, subfolder, folder_type))
        return results

    @staticmethod
    def get_save_audio_ui(
        audio: dict[str, Any], filename_prefix: str, cls: Any, format: str = "flac", quality: str = "128k"
    ) -> SavedAudios:
        """Save to the output folder; the UI data of it."""
        return SavedAudios(AudioSaveHelper.save_audio(audio, filename_prefix, FolderType.output, cls, format, quality))


def _encode_audio(path: str, waveform: Any, rate: int, format: str, quality: str, metadata: dict[str, str]) -> None:
    """Write a waveform [C,T] with values from -1 to 1."""
    import av

    codecs = {"flac": "flac", "mp3": "libmp3lame", "opus": "libopus"}
    if format not in codecs:
        raise ValueError(f"audio can be saved as {', '.join(codecs)}, not {format!r}")
    layout = "mono" if waveform.shape[0] == 1 else "stereo"
    out_rate = min((r for r in _OPUS_RATES if r >= rate), default=48000) if format == "opus" else rate
    with av.open(path, "w", format="ogg" if format == "opus" else format) as container:
        stream = container.add_stream(codecs[format], rate=out_rate, layout=layout)
        (stream if format == "opus" else container).metadata.update(metadata)
        if format == "mp3" and quality == "V0":
            stream.codec_context.qscale = 1
        elif format != "flac":
            stream.bit_rate = int(quality.rstrip("k")) * 1000
        samples = waveform[:2].movedim(0, 1).reshape(1, -1).contiguous().numpy()
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout=layout)
        frame.sample_rate = rate
        frame.time_base = Fraction(1, rate)
        frame.pts = 0
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


def save_background(image: Any) -> str:
    """Save an image [1,H,W,C] to the temp folder; its path as 3D viewers expect it."""
    import folder_paths

    file = f"bg_{uuid.uuid4().hex}.png"
    to_pil(image[0]).save(os.path.join(folder_paths.get_temp_directory(), file), compress_level=1)
    return f"temp/{file}"
