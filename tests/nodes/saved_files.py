"""Describes files that nodes wrote, in the form of the recorded cases."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageSequence

from nodes import png16

# What the recordings carried as extra_pnginfo["workflow"].
WORKFLOW = {"nodes": [], "version": 0.4, "extra": {"n": "\u00e9"}}


class Describer:
    """Describes files of one run; metadata equal to the prompt's or the workflow's JSON is named, not repeated."""

    def __init__(self, prompt: dict, workflow: Any = WORKFLOW):
        self.named = {json.dumps(prompt): "<json prompt>", json.dumps(workflow): "<json workflow>"}

    def text(self, value: bytes | str) -> str:
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        for content, name in self.named.items():
            text = text.replace(content, name)
        return text[:300]

    def folder(self, root: Path, kind: str, ignore: list[str]) -> list[dict]:
        """Every file below root/kind, sorted, with random parts of names replaced."""
        found = sorted(path for path in (root / kind).rglob("*") if path.is_file())
        described = []
        for path in found:
            relative = path.relative_to(root / kind).as_posix()
            if relative not in ignore:
                name = re.sub(r"_temp_[a-z]{5}_", "_temp_?????_", relative)
                described.append({"dir": kind, "path": name, **self.describe(path)})
        return described

    def describe(self, path: Path) -> dict:
        if path.suffix == ".latent":
            return self._latent(path.read_bytes())
        if path.suffix in (".png", ".webp"):
            return self._image(path)
        if path.suffix == ".exr":
            return self._exr(path.read_bytes())
        return {"text": path.read_text(encoding="utf-8")}

    def _latent(self, data: bytes) -> dict:
        (size,) = struct.unpack("<Q", data[:8])
        head = json.loads(data[8 : 8 + size])
        metadata = head.pop("__metadata__", None) or {}
        return {
            "metadata": {key: self.text(value) for key, value in metadata.items()},
            "tensors": {key: [value["dtype"], value["shape"]] for key, value in head.items()},
        }

    def _image(self, path: Path) -> dict:
        data = path.read_bytes()
        result = self._png_chunks(data) if path.suffix == ".png" else {}
        with Image.open(path) as image:
            result |= {"format": image.format, "mode": image.mode, "size": list(image.size)}
            result["frames"] = getattr(image, "n_frames", 1)
            if result.get("ihdr", {}).get("bit_depth") == 16:
                return result | {"pixels_u16": _deep_pixels(path, image)}
            pixels, durations = [], []
            for frame in ImageSequence.Iterator(image):
                frame.load()
                durations.append(frame.info.get("duration"))
                mode = "RGBA" if "A" in frame.getbands() else ("L" if frame.mode == "L" else "RGB")
                pixels.append(torch.from_numpy(np.array(frame.convert(mode))))
            if any(duration is not None for duration in durations):
                result["durations_ms"] = durations
            result["pixels_u8"] = pixels
            if path.suffix == ".webp":
                result["exif"] = {hex(tag): self.text(value) for tag, value in image.getexif().items()}
                result["info_keys"] = sorted(image.info)
                result["lossless"] = b"VP8L" in data
        return result

    def _exr(self, data: bytes) -> dict:
        """Attributes and pixels [H,W,C] of an uncompressed file with 32-bit floats."""
        position, attributes, box = 8, [], (0, 0, 0, 0)
        while data[position]:
            name, kind, rest = data[position:].split(b"\0", 2)
            (size,) = struct.unpack("<i", rest[:4])
            raw = rest[4 : 4 + size]
            position += len(name) + len(kind) + 6 + size
            value: Any = None
            if kind == b"string":
                value = self.text(raw)
            elif kind == b"compression":
                value = raw[0]
            elif kind == b"chromaticities":
                value = [round(x, 4) for x in struct.unpack("<8f", raw)]
            elif kind == b"chlist":
                value = [c.decode() for c in re.findall(rb"([A-Z])\0", raw)]
            elif kind == b"box2i":
                value = list(struct.unpack("<4i", raw))
                box = value
            attributes.append([name.decode(), kind.decode(), value])
        names = attributes[0][2]
        width, height = box[2] + 1, box[3] + 1
        offsets = struct.unpack_from(f"<{height}Q", data, position + 1)
        lines = []
        for y, offset in enumerate(offsets):
            row, size = struct.unpack_from("<ii", data, offset)
            assert row == y and size == len(names) * width * 4
            lines.append(np.frombuffer(data, "<f4", len(names) * width, offset + 8).reshape(len(names), width))
        planes = np.stack(lines)
        order = [names.index(name) for name in ("R", "G", "B", "A", "Y") if name in names]
        return {"attributes": attributes, "pixels_f32": torch.from_numpy(planes[:, order].transpose(0, 2, 1).copy())}

    def _png_chunks(self, data: bytes) -> dict:
        result: dict[str, Any] = {}
        chunks: list[str] = []
        position = 8
        while position < len(data):
            (size,) = struct.unpack(">I", data[position : position + 4])
            kind = data[position + 4 : position + 8].decode("latin-1")
            body = data[position + 8 : position + 8 + size]
            position += 12 + size
            if not chunks or chunks[-1] != kind:
                chunks.append(kind)
            if kind == "IHDR":
                width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
                result["ihdr"] = {
                    "width": width, "height": height, "bit_depth": depth, "color_type": colour,
                    "interlace": interlace,
                }  # fmt: skip
            if kind in ("tEXt", "iTXt", "comf", "zTXt"):
                key, _, text = body.partition(b"\0")
                entry = [kind, key.decode("latin-1"), self.text(text)]
                result.setdefault("text_chunks", []).append(entry)
        return result | {"chunks": chunks}


def _deep_pixels(path: Path, image: Image.Image) -> torch.Tensor:
    """[H,W] or [H,W,C] of a 16-bit PNG, as int32."""
    pixels = png16.read(str(path))
    values = np.asarray(image) if pixels is None else pixels
    return torch.from_numpy(values.astype(np.int32))
