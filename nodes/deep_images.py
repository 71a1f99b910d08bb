"""Encodes images with more than 8 bits per channel: PNG with 16 bits, and OpenEXR with 32-bit floats.

Formats: PNG specification (W3C, third edition), sections 5, 9 and 11; "OpenEXR File Layout" (openexr.com).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}
_EXR_MAGIC = 20000630
_EXR_FLOAT = 2
# Channels by name, in the alphabetical order that the format asks for; the indices are ours.
_EXR_CHANNELS = {1: [("Y", 0)], 3: [("B", 2), ("G", 1), ("R", 0)], 4: [("A", 3), ("B", 2), ("G", 1), ("R", 0)]}


def encode_png(pixels: np.ndarray, texts: Mapping[str, str]) -> bytes:
    """A PNG file of [H,W,C] uint8 or uint16 with 1 to 4 channels, the texts before the pixels."""
    height, width, channels = pixels.shape
    deep = pixels.dtype == np.uint16
    header = struct.pack(">IIBBBBB", width, height, 16 if deep else 8, _PNG_COLOUR[channels], 0, 0, 0)
    rows = pixels.astype(">u2" if deep else np.uint8).reshape(height, -1).view(np.uint8)
    # Each row as its difference to the one above (filter 2): simple, and pictures shrink well with it.
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = 2
    filtered[:, 1:] = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    return b"".join(
        [
            _PNG_SIGNATURE,
            _chunk(b"IHDR", header),
            *(_chunk(b"tEXt", _latin1(key) + b"\0" + _latin1(text)) for key, text in texts.items()),
            _chunk(b"pHYs", struct.pack(">IIB", 1, 1, 0)),
            _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 6)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _latin1(text: str) -> bytes:
    """tEXt holds Latin-1; JSON that is ASCII always fits, other names of keys may not."""
    return text.encode("latin-1", "replace")


def encode_exr(pixels: np.ndarray, texts: Mapping[str, str], chromaticities: Sequence[float]) -> bytes:
    """An uncompressed OpenEXR file of [H,W,C] float32 with 1, 3 or 4 channels, linear light.

    chromaticities: x and y of red, green, blue and white.
    """
    height, width, channels = pixels.shape
    layout = _EXR_CHANNELS[channels]
    names = b"".join(name.encode() + struct.pack("<BiB3xii", 0, _EXR_FLOAT, 0, 1, 1) for name, _ in layout)
    window = struct.pack("<4i", 0, 0, width - 1, height - 1)
    attributes = [
        ("channels", "chlist", names + b"\0"),
        ("compression", "compression", b"\0"),
        ("dataWindow", "box2i", window),
        ("displayWindow", "box2i", window),
        ("lineOrder", "lineOrder", b"\0"),
        ("screenWindowCenter", "v2f", struct.pack("<2f", 0, 0)),
        ("screenWindowWidth", "float", struct.pack("<f", 1)),
        ("gamma", "float", struct.pack("<f", 1)),
        ("writer", "string", b"darkroom"),
        *((key, "string", text.encode("utf-8")) for key, text in texts.items()),
        ("chromaticities", "chromaticities", struct.pack("<8f", *chromaticities)),
    ]
    header = struct.pack("<ii", _EXR_MAGIC, 2)
    for name, kind, value in attributes:
        header += name.encode() + b"\0" + kind.encode() + b"\0" + struct.pack("<i", len(value)) + value
    header += b"\0"
    # [H,channels,W]: within a line the channels follow each other.
    lines = np.stack([pixels[..., index] for _, index in layout], axis=1).astype("<f4")
    size = channels * width * 4
    first = len(header) + 8 * height
    offsets = struct.pack(f"<{height}Q", *(first + y * (8 + size) for y in range(height)))
    body = b"".join(struct.pack("<ii", y, size) + lines[y].tobytes() for y in range(height))
    return header + offsets + body
