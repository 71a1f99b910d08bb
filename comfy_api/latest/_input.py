"""`Input`: what nodes of other packs may hand over (spec node-api.md 2.1 and 3.6). Tensors are torch tensors."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, TypedDict

from comfy_api.latest._types import VideoCodec, VideoComponents, VideoContainer

ImageInput = Any  # a float tensor [B,H,W,C] with values from 0 to 1
MaskInput = Any  # a float tensor [B,H,W] or [H,W] with values from 0 to 1
LatentInput = dict  # {"samples": [B,C,H,W], and optionally "noise_mask", "batch_index", "type"}
Image = ImageInput
Mask = MaskInput
Latent = LatentInput


class AudioInput(TypedDict):
    """Sound: waveform [B,C,T] with values from -1 to 1, and samples per second."""

    waveform: Any
    sample_rate: int


class VideoInput(ABC):
    """A video, wherever it is."""

    @abstractmethod
    def get_components(self) -> VideoComponents:
        """Frames, frame rate and sound."""

    @abstractmethod
    def save_to(
        self,
        path: str | io.BytesIO,
        format: VideoContainer = VideoContainer.AUTO,
        codec: VideoCodec = VideoCodec.AUTO,
        metadata: dict | None = None,
    ) -> None:
        """Write it to a file or stream; `metadata` values are encoded as JSON."""

    def get_stream_source(self) -> str | io.BytesIO:
        """A path or stream from which the encoded video can be read."""
        stream = io.BytesIO()
        self.save_to(stream)
        stream.seek(0)
        return stream

    def get_dimensions(self) -> tuple[int, int]:
        """Width and height in pixels."""
        images = self.get_components().images
        return images.shape[2], images.shape[1]

    def get_frame_count(self) -> int:
        """How many frames there are."""
        return self.get_components().images.shape[0]

    def get_frame_rate(self) -> Fraction:
        """Frames per second."""
        return Fraction(self.get_components().frame_rate)

    def get_duration(self) -> float:
        """Seconds."""
        return float(self.get_frame_count() / self.get_frame_rate())

    def as_trimmed(self, start_time: float = 0, duration: float = 0, strict_duration: bool = True) -> VideoInput | None:
        """A part of the video, in seconds; a duration of 0 is all that is left.

        None if there is nothing at that time, or, with `strict_duration`, less than asked for.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be trimmed")

    def get_container_format(self) -> str:
        """The names of the file format, as the decoder gives them."""
        return VideoContainer.get_extension(VideoContainer.AUTO)


Audio = AudioInput
Video = VideoInput
