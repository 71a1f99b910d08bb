"""PNG files with 16 bits per channel and colour or alpha, which Pillow cuts down to 8 bits.

Format: PNG specification (W3C, third edition), sections 7, 9 and 11.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
# Larger images are left to Pillow, which knows how to refuse them.
_MAX_PIXELS = 178_956_970


def read(path: str) -> np.ndarray | None:
    """Pixels [H,W,C] uint16 of a 16-bit RGB, RGBA or grey+alpha PNG; None for every other file.

    Interlaced files, ones with a colour key or an orientation, and single-channel ones give None too: Pillow reads
    those. Raises ValueError or zlib.error's parent when the data is cut off.
    """
    with open(path, "rb") as f:
        head = f.read(33)
        if len(head) < 33 or not head.startswith(_SIGNATURE):
            return None
        width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", head[16:29])
        if depth != 16 or interlace or color not in (2, 4, 6) or width * height > _MAX_PIXELS:
            return None
        data = f.read()
    packed = bytearray()
    for kind, body in _chunks(data):
        if kind in (b"tRNS", b"eXIf"):
            return None
        if kind == b"IDAT":
            packed += body
    channels = _CHANNELS[color]
    stride = width * channels * 2
    try:
        # One byte more than needed, so that a file that unpacks to something huge does not fill the memory.
        raw = zlib.decompressobj().decompress(bytes(packed), height * (stride + 1) + 1)
    except zlib.error as error:
        raise ValueError(f"its pixel data cannot be unpacked: {error}") from error
    if len(raw) < height * (stride + 1):
        raise ValueError("its pixel data is cut off")
    lines = np.frombuffer(raw, np.uint8, height * (stride + 1)).reshape(height, stride + 1)
    pixels = _unfilter(lines[:, 0], lines[:, 1:].reshape(height, width, channels * 2))
    return pixels.reshape(height, stride).view(">u2").reshape(height, width, channels).astype(np.uint16)


def _chunks(data: bytes):
    pos = 0
    while pos + 8 <= len(data):
        (size,) = struct.unpack(">I", data[pos : pos + 4])
        yield data[pos + 4 : pos + 8], data[pos + 8 : pos + 8 + size]
        pos += 12 + size


def _unfilter(kinds: np.ndarray, filtered: np.ndarray) -> np.ndarray:
    """Undo the row filters: kinds [H] in 0..4, filtered [H,W,bytes per pixel] -> bytes of the same shape.

    A pixel needs its left, upper and upper-left neighbours, so all pixels of one anti-diagonal can be done at once.
    """
    if kinds.max(initial=0) > 4:
        raise ValueError(f"unknown row filter {kinds.max()}")
    height, width, _ = filtered.shape
    # One pixel of zeros above and to the left saves the special cases at the edges.
    out = np.zeros((height + 1, width + 1, filtered.shape[2]), np.int16)
    rows = np.arange(height)
    for diagonal in range(height + width - 1):
        y = rows[max(0, diagonal - width + 1) : diagonal + 1]
        x = diagonal - y
        left, up, corner = out[y + 1, x], out[y, x + 1], out[y, x]
        kind = kinds[y][:, None]
        estimate = left + up - corner
        to_left, to_up, to_corner = abs(estimate - left), abs(estimate - up), abs(estimate - corner)
        paeth = np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))
        choices = (np.zeros_like(left), left, up, (left + up) >> 1, paeth)
        out[y + 1, x + 1] = (filtered[y, x] + np.choose(kind, choices)) & 255
    return out[1:, 1:].astype(np.uint8)
