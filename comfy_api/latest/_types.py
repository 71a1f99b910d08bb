"""`Types`: values that nodes hand to each other, and the formats they are saved in (spec node-api.md 3.6)."""

from __future__ import annotations

import io
import os
import shutil
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any


class VideoCodec(str, Enum):
    """How frames are encoded."""

    AUTO = "auto"
    H264 = "h264"

    @classmethod
    def as_input(cls) -> list[str]:
        """The choices of a combo."""
        return [member.value for member in cls]


class VideoContainer(str, Enum):
    """The kind of file."""

    AUTO = "auto"
    MP4 = "mp4"

    @classmethod
    def as_input(cls) -> list[str]:
        """The choices of a combo."""
        return [member.value for member in cls]

    @classmethod
    def get_extension(cls, value: str | VideoContainer) -> str:
        """The file name extension, without dot; AUTO is MP4."""
        value = cls(value)
        return cls.MP4.value if value is cls.AUTO else value.value


@dataclass
class VideoComponents:
    """A video taken apart: frames [B,H,W,C] with values from 0 to 1, frames per second, sound, metadata."""

    images: Any
    frame_rate: Fraction
    audio: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    bit_depth: int = 8
    color_space: str = "sRGB"  # or "HDR" (HLG), "HDR PQ": what the values of the frames stand for

    def frames_between(self, first: int, end: int) -> VideoComponents:
        """The frames from `first` up to, not including, `end`; with the sound of that time, None if there is none."""
        audio = self.audio
        if audio is not None:
            per_frame = audio["sample_rate"] / self.frame_rate
            wave = audio["waveform"][..., round(first * per_frame) : round(end * per_frame)]
            audio = {**audio, "waveform": wave} if wave.shape[-1] else None
        return replace(self, images=self.images[first:end], audio=audio)


class VOXEL:
    """A batch of voxel grids [B,D,H,W]."""

    def __init__(self, data: Any) -> None:
        self.data = data


class MESH:
    """A batch of meshes: vertices [B,N,3], faces [B,M,3], and what belongs to them where it is known."""

    def __init__(self, vertices: Any, faces: Any, **attributes: Any) -> None:
        self.vertices = vertices
        self.faces = faces
        for name, value in attributes.items():
            setattr(self, name, value)


class SPLAT:
    """A cloud of Gaussians; the attributes are tensors whose first dimension counts the Gaussians."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class File3D:
    """A 3D model file, on disk or in memory.

    Args:
        source: a path, or a binary stream.
        file_format: the extension without dot; by default that of the path.
    """

    def __init__(self, source: str | io.BytesIO, file_format: str = "") -> None:
        self._source = source
        if not file_format and isinstance(source, str):
            file_format = os.path.splitext(source)[1].lstrip(".")
        self.format = file_format.lower()

    @property
    def is_disk_backed(self) -> bool:
        """Whether it is a file on disk."""
        return isinstance(self._source, str)

    def get_source(self) -> str | io.BytesIO:
        """The path, or the stream at its beginning."""
        if not isinstance(self._source, str):
            self._source.seek(0)
        return self._source

    def get_data(self) -> io.BytesIO:
        """The contents as a stream."""
        return io.BytesIO(self.get_bytes())

    def get_bytes(self) -> bytes:
        """The contents."""
        source = self.get_source()
        if isinstance(source, str):
            with open(source, "rb") as file:
                return file.read()
        return source.read()

    def save_to(self, path: str) -> str:
        """Write the file to a path; returns the path."""
        source = self.get_source()
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        if isinstance(source, str):
            if os.path.abspath(source) != os.path.abspath(path):
                shutil.copyfile(source, path)
        else:
            with open(path, "wb") as file:
                shutil.copyfileobj(source, file)
        return path
