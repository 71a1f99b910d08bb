"""Re-encoding images for `/view` and joining masks for `/upload/mask` (spec: http-api.md section 8).

Works on whole files in memory and is meant for a worker thread, not the event loop. Needs PIL.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

MOST_PIXELS = 178_956_970  # PIL's own limit against decompression bombs, as an error instead of a warning
DEFAULT_QUALITY = 90


class NotAnImage(ValueError):
    """The file cannot be decoded; the message says why."""


@contextlib.contextmanager
def opened(source: Any) -> Iterator[Any]:
    """The decoded first frame of an image file or stream, upright as its EXIF says. Raises NotAnImage."""
    from PIL import Image, ImageOps

    try:
        with Image.open(source) as image:
            if image.width * image.height > MOST_PIXELS:
                raise NotAnImage(f"{image.width} x {image.height} pixels are too many")
            image.load()
            upright = ImageOps.exif_transpose(image)
            upright.info.update({k: v for k, v in image.info.items() if k not in ("exif", "xmp")})
            yield upright
    except FileNotFoundError:
        raise
    except NotAnImage:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, TypeError, Image.DecompressionBombError) as error:
        raise NotAnImage(f"not an image: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What is wrong with a file, without its place on this machine."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "it has no format that is known here"
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) and error.errno else str(error)


def parse_preview(text: str) -> tuple[str, int]:
    """(`webp` or `jpeg`, quality 1-100) of a `preview` parameter such as `jpeg;80`."""
    image_format, _, quality = text.partition(";")
    if image_format not in ("webp", "jpeg"):
        image_format = "webp"
    return image_format, max(1, min(100, int(quality))) if quality.isdecimal() else DEFAULT_QUALITY


def preview(source: Any, parameter: str, channel: str | None = None) -> tuple[bytes, str]:
    """(file bytes, MIME type) of an image file or stream re-encoded for display. Raises NotAnImage.

    channel: `rgb` drops alpha; any other that has an `a` keeps it, so jpeg becomes webp; None leaves it to the format.
    """
    image_format, quality = parse_preview(parameter)
    if channel is not None and "a" in channel:
        image_format = "webp"  # jpeg has no alpha
    with opened(source) as image:
        if image_format == "jpeg" or channel == "rgb":
            image = image.convert("RGB")
        elif image.mode not in ("RGB", "RGBA"):
            image = image.convert("RGBA" if has_alpha(image) else "RGB")
        out = io.BytesIO()
        image.save(out, image_format.upper(), quality=quality)
    return out.getvalue(), f"image/{image_format}"


def has_alpha(image: Any) -> bool:
    """Whether an image has transparency of any kind."""
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def without_alpha(path: str) -> bytes:
    """The image as PNG without alpha. Raises NotAnImage."""
    with opened(path) as image:
        return _png(image.convert("RGB"))


def alpha_only(path: str) -> bytes:
    """A black RGBA PNG with the image's alpha, 255 where it has none. Raises NotAnImage."""
    from PIL import Image

    with opened(path) as image:
        alpha = image.convert("RGBA").getchannel("A") if has_alpha(image) else Image.new("L", image.size, 255)
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        black.putalpha(alpha)
        return _png(black)


def _png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def with_mask(original: str, mask: Any) -> bytes:
    """The original as RGBA PNG with the mask's alpha; the original's text chunks stay. Raises NotAnImage."""
    from PIL.PngImagePlugin import PngInfo

    with opened(original) as image:
        texts = {k: v for k, v in image.info.items() if isinstance(k, str) and isinstance(v, str)}
        combined = image.convert("RGBA")
    with opened(mask) as mask_image:
        alpha = mask_image.convert("RGBA").getchannel("A")
    if alpha.size != combined.size:
        alpha = alpha.resize(combined.size)
    combined.putalpha(alpha)
    info = PngInfo()
    for key, value in texts.items():
        info.add_text(key, value)
    out = io.BytesIO()
    combined.save(out, "PNG", compress_level=4, pnginfo=info)
    return out.getvalue()


def cover(source: str | bytes) -> bytes:
    """An image file, given by path or content, as WebP: the preview of a model. Raises NotAnImage."""
    return preview(io.BytesIO(source) if isinstance(source, bytes) else source, "webp")[0]
