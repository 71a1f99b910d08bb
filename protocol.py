"""What goes over the wire: JSON bytes, and the frames of the WebSocket (spec: websocket.md).

JSON never contains NaN or Infinity (null instead), whatever nodes and clients put in. Imports nothing heavy.
"""

from __future__ import annotations

import math
import re
from json import dumps, loads  # by name: there are packs that replace them
from typing import Any

import orjson


class BinaryEventTypes:
    """Event numbers of binary frames; 2 never leaves the server (it asks the server to encode an image)."""

    PREVIEW_IMAGE = 1
    UNENCODED_PREVIEW_IMAGE = 2
    TEXT = 3
    PREVIEW_IMAGE_WITH_METADATA = 4


# Image types of a preview frame.
JPEG_IMAGE = 1
PNG_IMAGE = 2
PREVIEW_JPEG_QUALITY = 95
PREVIEW_PNG_COMPRESSION = 1

_OPTIONS = orjson.OPT_NON_STR_KEYS


# JSON from outside is refused beyond this many levels, so that what was accepted can always be told again: orjson
# writes 254, and answers put a value a few levels down.
DEEPEST = 240


class UnsendableError(TypeError):
    """A value has no JSON form. The message names its type."""


class InvalidJson(ValueError):
    """A text that should be JSON is not."""


def to_json(value: Any) -> bytes:
    """UTF-8 JSON of `value`; NaN and infinities become null.

    Raises UnsendableError for what JSON cannot express (bytes, tensors, arbitrary objects, cycles).
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        # orjson refuses integers over 64 bits, lone surrogates and deep nesting, which JSON allows.
        try:
            return dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UnsendableError(f"not expressible as JSON: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def from_json(data: bytes | str) -> Any:
    """Parse JSON as lenient clients write it: NaN, big integers, lone surrogates and a leading BOM pass.

    Raises InvalidJson, also for what is nested more than `DEEPEST` levels deep.
    """
    value = _parsed(data)
    if _may_be_deep(data) and _is_deep(value):
        raise InvalidJson(f"it is nested more than {DEEPEST} levels deep")
    return value


def _may_be_deep(data: bytes | str) -> bool:
    """Whether there are enough brackets for it; true of long bodies too, which cost a closer look."""
    opening = (b"[", b"{") if isinstance(data, (bytes, bytearray)) else ("[", "{")
    return sum(map(data.count, opening)) > DEEPEST


def _is_deep(value: Any) -> bool:
    try:
        orjson.dumps(value)  # much faster than looking at every value, and refuses what is deep
        return False
    except TypeError:  # for that reason, or another
        pass
    level = [[value]]
    for _ in range(DEEPEST + 1):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [value for items in inner for value in items if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


def _parsed(data: bytes | str) -> Any:
    if _LONG_NUMBER.search(data if isinstance(data, (bytes, bytearray)) else data.encode("utf-8", "replace")):
        return _from_json_slowly(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _from_json_slowly(data)


# orjson rounds integers over 64 bits to floats; the standard parser keeps them exact.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _from_json_slowly(data: bytes | str) -> Any:
    try:
        text = data.decode("utf-8-sig") if isinstance(data, (bytes, bytearray)) else data.lstrip("\ufeff")
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(str(error)) from error


def event_frame(event: str, data: Any) -> bytes:
    """The text frame of a JSON event. Raises UnsendableError."""
    return b'{"type":' + to_json(str(event)) + b',"data":' + to_json(data) + b"}"


def _uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def binary_frame(event: int, payload: bytes) -> bytes:
    """A binary frame: 4 bytes event number (big-endian), then the payload."""
    return _uint32(event) + payload


def text_frame(text: bytes | str, node_id: str) -> bytes:
    """Frame 3: a text for a node."""
    node = str(node_id).encode()
    body = text.encode() if isinstance(text, str) else bytes(text)
    return binary_frame(BinaryEventTypes.TEXT, _uint32(len(node)) + node + body)


def encode_image(image_format: str, image: Any, max_size: int | None = None) -> tuple[int, bytes]:
    """(image type, file bytes) of a preview; `image` is a PIL image.

    With `max_size` the image is scaled, up or down, to fit a square of that side, keeping its shape.
    """
    import io

    from PIL import Image, ImageOps

    if max_size is not None:
        image = ImageOps.contain(image, (max_size, max_size), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    if image_format == "PNG":
        image.save(out, "PNG", compress_level=PREVIEW_PNG_COMPRESSION)
        return PNG_IMAGE, out.getvalue()
    if image.mode not in ("RGB", "L", "CMYK"):
        image = image.convert("RGB")
    image.save(out, "JPEG", quality=PREVIEW_JPEG_QUALITY)
    return JPEG_IMAGE, out.getvalue()


def preview_frame(preview: tuple[str, Any, int | None]) -> bytes:
    """Frame 1 of a preview `(format, PIL image, max_size)`: image type, then the file."""
    number, data = encode_image(*preview)
    return binary_frame(BinaryEventTypes.PREVIEW_IMAGE, _uint32(number) + data)


def preview_with_metadata_frame(preview: tuple[str, Any, int | None], metadata: dict[str, Any]) -> bytes:
    """Frame 4: like frame 1 but with a JSON object that names node and prompt, and the image's MIME type."""
    number, data = encode_image(*preview)
    described = {**metadata, "image_type": "image/png" if number == PNG_IMAGE else "image/jpeg"}
    head = to_json(described)
    return binary_frame(BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA, _uint32(len(head)) + head + data)


def encode_event(event: str | int, data: Any) -> tuple[bytes, bool]:
    """(frame, whether it is binary) of what was handed to `send_sync`. Raises UnsendableError.

    Binary events: 1 and 3 take the payload as bytes; 2 takes `(format, image, max_size)`; 4 takes
    `((format, image, max_size), metadata)`.
    """
    if not isinstance(event, int):
        if isinstance(data, (bytes, bytearray)):
            raise UnsendableError(f"event {event!r}: bytes need a numbered event")
        return event_frame(event, data), False
    if event == BinaryEventTypes.UNENCODED_PREVIEW_IMAGE:
        return preview_frame(data), True
    if event == BinaryEventTypes.PREVIEW_IMAGE_WITH_METADATA and not isinstance(data, (bytes, bytearray)):
        return preview_with_metadata_frame(*data), True
    if not isinstance(data, (bytes, bytearray)):
        raise UnsendableError(f"binary event {event}: expected bytes, got {type(data).__name__}")
    return binary_frame(event, bytes(data)), True
